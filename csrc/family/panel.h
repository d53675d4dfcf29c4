// Activations as the linear kernels read them.
//
// The rows of a step are cut into row blocks of at most kMaxRows. A row block's panel keeps
// its rows interleaved, so that a kernel walks one pointer with constant offsets:
//
//   f32, bf16   for every k (or pair of k): mr words of 4 bytes, one a row
//   q8          for every 32 k: 8 × mr words (4 int8 each), then per row: the scale, the sums
//               a minimum is multiplied with (of 32 and of each 16), and −128 · Σq (likewise),
//               from which a kernel starts its integer sums to undo a code's offset
//
// A row block that starts at row r lies at r · row_bytes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "../codec/codec.h"

namespace gm::inline GM_ISA {

constexpr int kPanelWords = 8 + 7;  // words per row and 32 k of a q8 panel
enum PanelWord { kScale = 0, kSum32 = 1, kSum16 = 2, kStart32 = 4, kStart16 = 5 };

inline size_t panel_row_bytes(Act act, int k) {
  switch (act) {
    case Act::f32:
      return size_t(k + (k & 1)) * 4;
    case Act::bf16:
      return size_t(k + 1) / 2 * 4;
    case Act::q8:
      return size_t(k) / 32 * kPanelWords * 4;
  }
  __builtin_unreachable();
}

// How `rows` rows are cut: in nearly equal blocks.
struct RowBlocks {
  int rows, count;
  RowBlocks(int n, Act act) : rows(n), count((n + max_rows(act) - 1) / max_rows(act)) {}
  static int max_rows(Act act) { return act == Act::q8 ? isa::kMaxRows : isa::kMaxFloatRows; }
  int start(int block) const { return int(int64_t(rows) * block / count); }
  int size(int block) const { return start(block + 1) - start(block); }
  int of_row(int row) const {
    int b = int(int64_t(row) * count / rows);
    while (start(b + 1) <= row) b++;
    return b;
  }
};

// Writes one row of k values into the panel of its step.
void write_panel_row(Act act, const RowBlocks& blocks, int row, const float* x, int k,
                     uint8_t* panel);
// The same from the row as a panel of its own: all formats interleave rows word by word.
void copy_panel_row(Act act, const RowBlocks& blocks, int row, const uint8_t* single, int k,
                    uint8_t* panel);

}  // namespace gm::inline GM_ISA
