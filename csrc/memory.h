// Anonymous memory: large, zeroed, on huge pages where the kernel has them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "isa/isa.h"

namespace gm::inline GM_ISA {

// A mapping of its own. Throws std::bad_alloc.
class Pages {
 public:
  Pages() = default;
  explicit Pages(size_t bytes);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// The blocks of every state group: arrays of equal blocks that grow and shrink at the end.
class Memory {
 public:
  explicit Memory(std::vector<size_t> block_bytes);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  size_t block_bytes(int group) const { return groups_.at(size_t(group)).block_bytes; }
  size_t blocks(int group) const { return groups_.at(size_t(group)).blocks.size(); }
  // Keeps the content of the blocks that stay. Throws std::bad_alloc, changing nothing.
  void resize(int group, size_t blocks);
  void copy(int group, size_t source, size_t target);
  int groups() const { return int(groups_.size()); }
  uint8_t* const* table(int group) const { return groups_[size_t(group)].blocks.data(); }
  size_t bytes() const;

 private:
  struct Group {
    size_t block_bytes = 0;
    std::vector<uint8_t*> blocks;
    std::vector<Pages> slabs;
    std::vector<size_t> slab_blocks;  // blocks of each slab
  };
  std::vector<Group> groups_;
};

}  // namespace gm::inline GM_ISA
