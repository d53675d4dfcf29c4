// Attention on a bfloat16 cache where a level multiplies bfloat16: two features, or two tokens,
// lie side by side in a word, and one instruction adds both their products to a float32 sum.
//
// In a block, per kv head: keys as [head_dim / 2][kBlockTokens] words of two features, then
// values as [kBlockTokens / 2][head_dim] words of two tokens. Queries and softmax weights are
// rounded to bfloat16. A query's result is a fixed sequence of operations on its own lanes, as
// in attention_kernels.h: tokens are always added pair by pair, counted from the context's start.
#pragma once
#include "attention_kernels.h"

namespace gm::inline GM_ISA::attend {

using isa::I8;
constexpr int kBlockPairs = kBlockTokens / 2;

// Whether a cache is laid out in pairs. Narrow or odd heads are not worth a kernel of their own.
inline bool paired(KvType type, int head_dim) {
  return isa::kDotBf16 && type == KvType::bf16 && head_dim % 2 == 0 && head_dim >= kLanes;
}

inline uint32_t pair_of(float low, float high) {
  return uint32_t(float_to_bf16(low)) | uint32_t(float_to_bf16(high)) << 16;
}

// s[i][t] = Σ_d q[d][i] · k[d][t]; q as words of two features, NQ of them side by side.
template <int NQ>
void score_pairs(const float* q, const void* keys, const void* next, int head_dim, float* s) {
  constexpr int kVectors = kBlockTokens / kLanes;
  auto k = static_cast<const uint32_t*>(keys);
  auto ahead = static_cast<const uint32_t*>(next);
  F acc[NQ][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < NQ; i++)
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; j++) acc[i][j] = isa::zero();
  for (int d = 0; d < head_dim; d += 2, k += kBlockTokens, ahead += kBlockTokens, q += NQ) {
    fetch<NQ>(ahead, kBlockTokens);
    I8 key[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; j++) key[j] = isa::load_i8(k + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < NQ; i++)
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; j++) acc[i][j] = isa::dot_bf16(acc[i][j], key[j], q + i);
  }
#pragma GCC unroll 16
  for (int i = 0; i < NQ; i++)
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; j++) isa::store(s + i * kChunkTokens + j * kLanes, acc[i][j]);
}

// Rounds the weights of tokens [from, to) of a chunk, in place: a row of kChunkTokens floats
// becomes kChunkTokens / 2 words. Whole blocks are rounded: the rest of them has weight 0.
inline void pair_weights(float* p, int from, int to) {
  const int begin = from / kBlockTokens * kBlockTokens;
  const int end = (to + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
  auto words = reinterpret_cast<unsigned char*>(p);
  for (int t = begin; t < end; t += kBlockTokens) {
    uint32_t pairs[kBlockPairs];
    for (int i = 0; i < kBlockPairs; i++) pairs[i] = pair_of(p[t + 2 * i], p[t + 2 * i + 1]);
    std::memcpy(words + size_t(t) * 2, pairs, sizeof pairs);
  }
}

// o[i] += Σ p[i][t] · v[t] over pairs of tokens, for NV vectors of columns; `mask` hides one
// token of a pair (what was never written is not multiplied, even by 0).
template <int NQ, int NV, bool Masked>
inline void weigh_pair_columns(const float* p, const uint32_t* v, const uint32_t* next, int stride,
                               int pairs, float* o, int width, I8 mask) {
  F acc[NQ][NV];
#pragma GCC unroll 16
  for (int i = 0; i < NQ; i++)
#pragma GCC unroll 16
    for (int j = 0; j < NV; j++) acc[i][j] = isa::load(o + i * width + j * kLanes);
  for (int t = 0; t < pairs; t++, v += stride, next += stride) {
    fetch<NQ>(next, NV * kLanes);
    I8 value[NV];
#pragma GCC unroll 16
    for (int j = 0; j < NV; j++) {
      value[j] = isa::load_i8(v + j * kLanes);
      if constexpr (Masked) value[j] = isa::and_i8(value[j], mask);
    }
#pragma GCC unroll 16
    for (int i = 0; i < NQ; i++)
#pragma GCC unroll 16
      for (int j = 0; j < NV; j++)
        acc[i][j] = isa::dot_bf16(acc[i][j], value[j], p + i * kChunkTokens + t);
  }
#pragma GCC unroll 16
  for (int i = 0; i < NQ; i++)
#pragma GCC unroll 16
    for (int j = 0; j < NV; j++) isa::store(o + i * width + j * kLanes, acc[i][j]);
}

template <int NQ, bool Masked>
inline void weigh_pairs_masked(const float* p, const void* values, const void* next, int pairs,
                               float* o, const Columns& columns, I8 mask) {
  constexpr int kMost = vectors_at_once(NQ);
  auto v = static_cast<const uint32_t*>(values);
  auto ahead = static_cast<const uint32_t*>(next);
  const int stride = columns.head_dim, width = columns.width();
  int j = 0;
  for (; j + kMost <= columns.full; j += kMost)
    weigh_pair_columns<NQ, kMost, Masked>(p, v + j * kLanes, ahead + j * kLanes, stride, pairs,
                                          o + j * kLanes, width, mask);
  for (; j < columns.full; j++)
    weigh_pair_columns<NQ, 1, Masked>(p, v + j * kLanes, ahead + j * kLanes, stride, pairs,
                                      o + j * kLanes, width, mask);
  if (j < columns.vectors)
    weigh_pair_columns<NQ, 1, Masked>(p, v + columns.last(), ahead + columns.last(), stride, pairs,
                                      o + j * kLanes, width, mask);
}

// `pairs` whole pairs of tokens, from the first that `p`, `values` and `next` point at.
template <int NQ>
void weigh_pairs(const float* p, const void* values, const void* next, int pairs, float* o,
                 const Columns& columns) {
  weigh_pairs_masked<NQ, false>(p, values, next, pairs, o, columns, I8{});
}

// One pair of which a query sees only the second (`high`) or only the first token.
inline void weigh_half(const float* p, const void* values, bool high, float* o,
                       const Columns& columns) {
  uint32_t words[kLanes];
  for (uint32_t& word : words) word = high ? 0xffff0000u : 0x0000ffffu;
  weigh_pairs_masked<1, true>(p, values, values, 1, o, columns, isa::load_i8(words));
}

template <int... I>
constexpr Kernels make_pair_kernels(std::integer_sequence<int, I...>) {
  return {{score_pairs<I + 1>...}, {weigh_pairs<I + 1>...}};
}

inline const Kernels& pair_kernels() {
  static constexpr Kernels kernels =
      make_pair_kernels(std::make_integer_sequence<int, kQueryTile>{});
  return kernels;
}

// Tokens [from, to) of a block, k at the row of `from`: two features a word.
inline void store_key_pairs(const float* k, ptrdiff_t stride, int head_dim, int from, int to,
                            uint8_t* target) {
  for (int t = from; t < to; t++, k += stride)
    for (int d = 0; d < head_dim; d += 2) {
      const uint32_t word = pair_of(k[d], k[d + 1]);
      std::memcpy(target + (size_t(d / 2) * kBlockTokens + size_t(t)) * 4, &word, 4);
    }
}

// The same for values: a token is one half of the words of its pair.
inline void store_value_pairs(const float* v, ptrdiff_t stride, int head_dim, int from, int to,
                              uint8_t* target) {
  for (int t = from; t < to; t++, v += stride) {
    uint8_t* row = target + size_t(t / 2) * size_t(head_dim) * 4 + size_t(t % 2) * 2;
    for (int c = 0; c < head_dim; c++) {
      const uint16_t x = float_to_bf16(v[c]);
      std::memcpy(row + size_t(c) * 4, &x, 2);
    }
  }
}

}  // namespace gm::inline GM_ISA::attend
