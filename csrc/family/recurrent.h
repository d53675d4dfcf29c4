// Layers that remember a state of fixed size: a short causal convolution, and a matrix for each
// head that decays, is written and is read token by token.
//
// A state lies in the blocks of its group: entry i of a sequence's table holds what is known
// after the last token of [i·kBlockTokens, (i + 1)·kBlockTokens) that was computed. A step reads
// the entry of the token before its first and writes every entry that it passes and that is
// there, so checkpoints cost a copy each and nothing is undone: whoever has an entry goes on from
// it. Tokens are taken one after the other whatever the step's size, so the bits of a row do not
// depend on it; the speed comes of holding a tile of the state in the first-level cache for all
// rows of a step.
#pragma once
#include <cstddef>
#include <cstdint>

#include "../isa/isa.h"

namespace gm::inline GM_ISA {

struct StateArgs {
  const int32_t* spans;  // see Step
  int sequences;
  const int32_t* table;
  int table_width;
  uint8_t* const* blocks;
  size_t offset;  // of the layer's state in a block, in bytes
};

constexpr int kMostTaps = 16;

struct ShortConvArgs {
  StateArgs state;                 // [taps - 1][columns] floats, the oldest row first
  const float *x, *weight, *bias;  // weight [taps][columns]; bias may be null
  ptrdiff_t x_stride;
  int columns, taps;
  float* out;
  ptrdiff_t out_stride;
};

int short_conv_units(const ShortConvArgs& a);
void short_conv(const ShortConvArgs& a, int begin, int end);

struct Rows2 {
  const float* data;
  ptrdiff_t stride;
  const float* row(int r) const { return data + r * stride; }
};

// Per head: S ← e^(rate·step)·S + k·uᵀ, out = Sᵀq + skip·v, where u = gain·v, or by the delta
// rule gain·(v − Sᵀk) with the decayed S. Head h reads key head h / (heads / key_heads), or, if
// `tiled`, h % key_heads.
struct RecurArgs {
  StateArgs state;  // [heads][tile][key_dim][columns of the tile] floats
  Rows2 q, k, v, step, gain;
  const float *rate, *skip;  // a value a head; skip may be null
  int heads, key_heads, key_dim, value_dim;
  bool delta, tiled;
  float* out;
  ptrdiff_t out_stride;
};

int recur_units(const RecurArgs& a);
void recur(const RecurArgs& a, int begin, int end);

}  // namespace gm::inline GM_ISA
