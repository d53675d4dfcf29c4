#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

namespace gm::inline GM_ISA {

Pages::Pages(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  constexpr size_t kHuge = size_t(2) << 20;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (bytes >= kHuge) madvise(p, bytes, MADV_HUGEPAGE);
#endif
  data_ = static_cast<uint8_t*>(p);
}

Pages::~Pages() {
  if (data_) munmap(data_, size_);
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Memory::Memory(std::vector<size_t> block_bytes) {
  for (size_t bytes : block_bytes) {
    groups_.emplace_back();
    groups_.back().block_bytes = bytes;
  }
}

void Memory::resize(int group, size_t blocks) {
  Group& g = groups_.at(size_t(group));
  size_t have = g.blocks.size();
  if (blocks > have) {
    size_t more = blocks - have;
    if (more > SIZE_MAX / 2 / std::max<size_t>(g.block_bytes, 1)) throw std::bad_alloc();
    Pages slab(more * g.block_bytes);
    g.blocks.reserve(blocks);
    g.slab_blocks.push_back(more);
    for (size_t i = 0; i < more; i++) g.blocks.push_back(slab.data() + i * g.block_bytes);
    g.slabs.push_back(std::move(slab));
    return;
  }
  // A slab is given back when its last block goes; inside one, pages are dropped.
  while (g.blocks.size() > blocks) {
    size_t& last = g.slab_blocks.back();
    size_t cut = std::min(last, g.blocks.size() - blocks);
    g.blocks.resize(g.blocks.size() - cut);
    last -= cut;
    if (last == 0) {
      g.slabs.pop_back();
      g.slab_blocks.pop_back();
    } else {
      uint8_t* from = g.slabs.back().data() + last * g.block_bytes;
      uintptr_t page = (reinterpret_cast<uintptr_t>(from) + 4095) & ~uintptr_t(4095);
      uint8_t* end = from + cut * g.block_bytes;
      if (reinterpret_cast<uint8_t*>(page) < end)
        madvise(reinterpret_cast<void*>(page), size_t(end - reinterpret_cast<uint8_t*>(page)),
                MADV_DONTNEED);
    }
  }
}

void Memory::copy(int group, size_t source, size_t target) {
  Group& g = groups_.at(size_t(group));
  if (source >= g.blocks.size() || target >= g.blocks.size())
    throw std::out_of_range("copy of a block that is not there");
  std::memcpy(g.blocks[target], g.blocks[source], g.block_bytes);
}

size_t Memory::bytes() const {
  size_t n = 0;
  for (const Group& g : groups_) n += g.blocks.size() * g.block_bytes;
  return n;
}

}  // namespace gm::inline GM_ISA
