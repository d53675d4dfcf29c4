// The arithmetic of attention on one block of 32 tokens, for a few queries at once.
//
// A query's result is a fixed sequence of operations on its own lanes: how many queries share
// a call, how columns are grouped into registers and from which type keys are widened only
// decides what is loaded together. So the bits of a row do not depend on its neighbours.
#pragma once
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "attention.h"

namespace gm::inline GM_ISA::attend {

using isa::F;
using isa::kLanes;
using isa::kQueryTile;

// A context is cut at multiples of this, by its own length only; see `merge`.
constexpr int kChunkTokens = 256;
constexpr int kChunkBlocks = kChunkTokens / kBlockTokens;
// Accumulators of a full tile of queries against 32 keys: what the registers hold.
constexpr int kAccumulators = kQueryTile * (kBlockTokens / kLanes);
static_assert(kBlockTokens % kLanes == 0);

// How an element of the cache is widened to float32 (exactly, in every case).
struct FromF16 {
  using Element = uint16_t;
  static F load(const Element* p) { return isa::load_f16(p); }
  static float widen(Element x) { return half_to_float(x); }
};
struct FromF32 {
  using Element = float;
  static F load(const Element* p) { return isa::load(p); }
  static float widen(Element x) { return x; }
};
struct FromBf16 {
  using Element = uint16_t;
  static F load(const Element* p) { return isa::load_bf16(p); }
  static float widen(Element x) { return bf16_to_float(x); }
};

// With few queries a kernel waits for memory: while it reads a row of a block it asks for the
// same row of the block that comes next.
template <int NQ, class Element>
inline void fetch(const Element* next, int elements) {
  constexpr int kLine = 64 / sizeof(Element);
  if constexpr (NQ <= 4)
    for (int i = 0; i < elements; i += kLine) __builtin_prefetch(next + i);
}

// s[i][t] = Σ_d q[d][i] · k[d][t] for NQ queries and the 32 tokens of a block, terms added in
// the order of d. Lanes of tokens never written come out as garbage: the caller masks them.
// `next`: what is read after this block (or the block itself).
template <class T, int NQ>
void score_block(const float* q, const void* keys, const void* next, int head_dim, float* s) {
  constexpr int kVectors = kBlockTokens / kLanes;
  auto k = static_cast<const typename T::Element*>(keys);
  auto ahead = static_cast<const typename T::Element*>(next);
  F acc[NQ][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < NQ; i++)
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; j++) acc[i][j] = isa::zero();
  for (int d = 0; d < head_dim; d++, k += kBlockTokens, ahead += kBlockTokens, q += NQ) {
    fetch<NQ>(ahead, kBlockTokens);
    F key[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; j++) key[j] = T::load(k + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < NQ; i++) {
      F b = isa::set1(q[i]);
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; j++) acc[i][j] = isa::fma(b, key[j], acc[i][j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < NQ; i++)
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; j++) isa::store(s + i * kChunkTokens + j * kLanes, acc[i][j]);
}

// How the columns of a head lie in accumulators: `full` whole vectors, then, if head_dim is
// no multiple of the lanes, one vector of the last kLanes columns, which repeats some columns
// in storage of its own (the same operations, so the same bits). Heads narrower than a vector
// are widened into a padded buffer first.
struct Columns {
  int head_dim, full, vectors;
  explicit Columns(int dim)
      : head_dim(dim), full(dim / kLanes), vectors((dim + kLanes - 1) / kLanes) {}
  bool narrow() const { return head_dim < kLanes; }
  int width() const { return vectors * kLanes; }
  int value_stride() const { return std::max(head_dim, kLanes); }
  int last() const { return std::max(head_dim - kLanes, 0); }
};

// o[i] += Σ_t p[i][t] · v[t] over `tokens` rows of v, for NV vectors of columns.
template <class T, int NQ, int NV>
inline void weigh_columns(const float* p, const typename T::Element* v,
                          const typename T::Element* next, int stride, int tokens, float* o,
                          int width) {
  F acc[NQ][NV];
#pragma GCC unroll 16
  for (int i = 0; i < NQ; i++)
#pragma GCC unroll 16
    for (int j = 0; j < NV; j++) acc[i][j] = isa::load(o + i * width + j * kLanes);
  for (int t = 0; t < tokens; t++, v += stride, next += stride) {
    fetch<NQ>(next, NV * kLanes);
    F value[NV];
#pragma GCC unroll 16
    for (int j = 0; j < NV; j++) value[j] = T::load(v + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < NQ; i++) {
      F b = isa::set1(p[i * kChunkTokens + t]);
#pragma GCC unroll 16
      for (int j = 0; j < NV; j++) acc[i][j] = isa::fma(b, value[j], acc[i][j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < NQ; i++)
#pragma GCC unroll 16
    for (int j = 0; j < NV; j++) isa::store(o + i * width + j * kLanes, acc[i][j]);
}

constexpr int vectors_at_once(int queries) {
  int n = 1;
  while (n < 8 && n * 2 * queries <= kAccumulators) n *= 2;
  return n;
}

// The same for all columns; `values` points at the first of the rows to add, `next` at the
// corresponding row of what is read after this block.
template <class T, int NQ>
void weigh_block(const float* p, const void* values, const void* next, int tokens, float* o,
                 const Columns& columns) {
  constexpr int kMost = vectors_at_once(NQ);
  auto v = static_cast<const typename T::Element*>(values);
  auto ahead = static_cast<const typename T::Element*>(next);
  const int stride = columns.value_stride(), width = columns.width();
  int j = 0;
  for (; j + kMost <= columns.full; j += kMost)
    weigh_columns<T, NQ, kMost>(p, v + j * kLanes, ahead + j * kLanes, stride, tokens,
                                o + j * kLanes, width);
  constexpr int kFewer = kMost >= 4 ? kMost / 2 : 1;
  for (; j + kFewer <= columns.full; j += kFewer)
    weigh_columns<T, NQ, kFewer>(p, v + j * kLanes, ahead + j * kLanes, stride, tokens,
                                 o + j * kLanes, width);
  for (; j < columns.full; j++)
    weigh_columns<T, NQ, 1>(p, v + j * kLanes, ahead + j * kLanes, stride, tokens, o + j * kLanes,
                            width);
  if (j < columns.vectors)
    weigh_columns<T, NQ, 1>(p, v + columns.last(), ahead + columns.last(), stride, tokens,
                            o + j * kLanes, width);
}

using ScoreBlock = void (*)(const float*, const void*, const void*, int, float*);
using WeighBlock = void (*)(const float*, const void*, const void*, int, float*, const Columns&);

// The kernels of one element type, by number of queries (index 0 is one query).
struct Kernels {
  std::array<ScoreBlock, kQueryTile> score;
  std::array<WeighBlock, kQueryTile> weigh;
};

template <class T, int... I>
constexpr Kernels make_kernels(std::integer_sequence<int, I...>) {
  return {{score_block<T, I + 1>...}, {weigh_block<T, I + 1>...}};
}

inline const Kernels& kernels_of(KvType type) {
  using Counts = std::make_integer_sequence<int, kQueryTile>;
  static constexpr Kernels f16 = make_kernels<FromF16>(Counts{});
  static constexpr Kernels f32 = make_kernels<FromF32>(Counts{});
  static constexpr Kernels bf16 = make_kernels<FromBf16>(Counts{});
  return type == KvType::f16 ? f16 : type == KvType::f32 ? f32 : bf16;
}

// Widens n elements, n a multiple of 32.
template <class T>
void widen_all(const void* from, int n, float* to) {
  auto p = static_cast<const typename T::Element*>(from);
  for (int i = 0; i < n; i += kLanes) isa::store(to + i, T::load(p + i));
}

// Widens rows narrower than a vector, padding each with zeros to kLanes.
template <class T>
void widen_narrow(const void* from, int rows, int columns, float* to) {
  auto p = static_cast<const typename T::Element*>(from);
  for (int r = 0; r < rows; r++, p += columns, to += kLanes)
    for (int c = 0; c < kLanes; c++) to[c] = c < columns ? T::widen(p[c]) : 0.0f;
}

// n floats to elements of the cache, rounded to nearest even; `from` may be read and `to`
// written up to the next multiple of kLanes.
inline void narrow(KvType, const float* from, int n, float* to) {
  std::memcpy(to, from, sizeof(float) * static_cast<size_t>(n));
}
inline void narrow(KvType type, const float* from, int n, uint16_t* to) {
  if (type == KvType::f16)
    for (int i = 0; i < n; i += kLanes) isa::store_f16(to + i, isa::load(from + i));
  else
    for (int i = 0; i < n; i++) to[i] = float_to_bf16(from[i]);
}

// A softmax in parts: its maximum, the sum of e^(score − maximum), the values so weighted.
struct Part {
  float max, sum;
};

// Turns scores[from, to) of a chunk into weights e^(s − max); the rest of the blocks they lie
// in becomes weight 0. The sum goes lane by lane in the order of blocks.
inline Part soften(float* scores, int from, int to, float softcap) {
  const int begin = from / kBlockTokens * kBlockTokens;
  const int end = (to + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
  if (softcap > 0) {
    F cap = isa::set1(softcap), inverse = isa::set1(1.0f / softcap);
    for (int t = begin; t < end; t += kLanes)
      isa::store(scores + t, isa::mul(cap, isa::tanh(isa::mul(isa::load(scores + t), inverse))));
  }
  constexpr float kHidden = -__builtin_inff();
  for (int t = begin; t < from; t++) scores[t] = kHidden;
  for (int t = to; t < end; t++) scores[t] = kHidden;
  F top = isa::set1(kHidden);
  for (int t = begin; t < end; t += kLanes) top = isa::max(top, isa::load(scores + t));
  const float max = isa::max_of(top);
  F m = isa::set1(max), sum = isa::zero();
  for (int t = begin; t < end; t += kLanes) {
    F e = isa::exp(isa::sub(isa::load(scores + t), m));
    isa::store(scores + t, e);
    sum = isa::add(sum, e);
  }
  return {max, isa::sum(sum)};
}

inline float first_lane(F x) {
  float lanes[kLanes];
  isa::store(lanes, x);
  return lanes[0];
}

// Adds a later chunk to what the earlier ones gave. Chunks are always added one at a time,
// in order, whoever computed them.
inline void merge(Part& part, float* o, const Part& later, const float* later_o, int width) {
  const float max = later.max > part.max ? later.max : part.max;
  F a = isa::exp(isa::set1(part.max - max)), b = isa::exp(isa::set1(later.max - max));
  F sum = isa::fma(isa::set1(part.sum), a, isa::mul(isa::set1(later.sum), b));
  part = {max, first_lane(sum)};
  for (int j = 0; j < width; j += kLanes)
    isa::store(o + j, isa::fma(isa::load(o + j), a, isa::mul(isa::load(later_o + j), b)));
}

// Divides by the sum (a sink, if any, takes its share) and writes head_dim floats.
inline void finish(const Part& part, const float* o, const float* sink, const Columns& columns,
                   float* out) {
  F factor = isa::set1(1.0f), sum = isa::set1(part.sum);
  if (sink) {
    const float max = *sink > part.max ? *sink : part.max;
    factor = isa::exp(isa::set1(part.max - max));
    sum = isa::fma(sum, factor, isa::exp(isa::set1(*sink - max)));
  }
  factor = isa::div(factor, sum);
  if (columns.narrow()) {
    isa::store_n(out, isa::mul(isa::load(o), factor), columns.head_dim);
    return;
  }
  for (int j = 0; j < columns.full; j++)
    isa::store(out + j * kLanes, isa::mul(isa::load(o + j * kLanes), factor));
  if (columns.full < columns.vectors)
    isa::store(out + columns.last(), isa::mul(isa::load(o + columns.full * kLanes), factor));
}

}  // namespace gm::inline GM_ISA::attend
