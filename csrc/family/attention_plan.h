// How the attention of a step is cut into units of work, and where its scratch lies.
#pragma once
#include "attention_kernels.h"

namespace gm::inline GM_ISA::attend {

// Queries of one kv head that share each widened block of keys and values.
constexpr int kMaxTile = 64;

// The fixed numbers of a call.
struct Shape {
  int group;  // query heads of a kv head
  int tile;   // most queries of a unit
  Columns columns;
  size_t head_bytes;  // keys, or values, of one kv head in a block
  explicit Shape(const AttentionArgs& a);
  int tiles(int rows) const { return (rows * group + tile - 1) / tile; }
  // Floats of a stored partial result: the weighted values, then maximum and sum.
  int partial_floats() const { return columns.width() + kLanes; }
  size_t buffer_floats() const;
};

struct Span {
  int first_row, rows, past;
  Span(const AttentionArgs& a, int sequence)
      : first_row(a.spans[3 * sequence]),
        rows(a.spans[3 * sequence + 1]),
        past(a.spans[3 * sequence + 2]) {}
  // The first token that the token at `position` sees.
  static int visible(int position, int window) {
    return window > 0 ? std::max(0, position + 1 - window) : 0;
  }
};

constexpr size_t kAlign = 64;

// Scratch begins with the workers' buffers; partial results follow.
inline uint8_t* aligned(uint8_t* scratch) {
  return scratch + (kAlign - reinterpret_cast<uintptr_t>(scratch) % kAlign) % kAlign;
}

// A worker's own buffers.
struct Buffers {
  float *q, *scores, *o, *total, *block;
  Buffers(const Shape& shape, float* base);
};

}  // namespace gm::inline GM_ISA::attend
