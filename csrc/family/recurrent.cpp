#include "recurrent.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "attention.h"

namespace gm::inline GM_ISA {
namespace {

using isa::F;
using isa::kLanes;

constexpr int kConvColumns = 64;
constexpr int kTile = 32;  // columns of a head's state that are held at a time
constexpr int kVectors = kTile / kLanes;
constexpr int kParts = kVectors >= 8 ? 1 : 8 / kVectors;  // sums that are added up at the end

// One sequence's rows and states.
struct Run {
  Run(const StateArgs& a, int sequence)
      : row(a.spans[3 * sequence]),
        rows(a.spans[3 * sequence + 1]),
        past(a.spans[3 * sequence + 2]),
        args(a),
        table(a.table + ptrdiff_t(sequence) * a.table_width) {}
  int row, rows, past;
  // The state after `tokens` tokens, at least one; null where it is not kept.
  float* after(int tokens) const {
    const int32_t block = table[(tokens - 1) / kBlockTokens];
    return block < 0 ? nullptr : reinterpret_cast<float*>(args.blocks[block] + args.offset);
  }
  // Where the state is to be kept once row r is done: at the ends of blocks and of the step.
  float* kept(int r) const {
    const int tokens = past + r + 1;
    return r + 1 == rows || tokens % kBlockTokens == 0 ? after(tokens) : nullptr;
  }

 private:
  const StateArgs& args;
  const int32_t* table;
};

void convolve(const ShortConvArgs& a, const Run& run, int from, int columns) {
  const int before = a.taps - 1;
  alignas(64) float past[kMostTaps][kConvColumns] = {};
  if (run.past > 0)
    for (int j = 0; j < before; j++)
      std::memcpy(past[j], run.after(run.past) + ptrdiff_t(j) * a.columns + from,
                  sizeof(float) * size_t(columns));
  // The input `back` rows before row r.
  auto input = [&](int r, int back) {
    return r >= back ? a.x + (run.row + r - back) * a.x_stride + from : past[before + r - back];
  };
  for (int r = 0; r < run.rows; r++) {
    float* out = a.out + (run.row + r) * a.out_stride + from;
    for (int c = 0; c < columns; c += kLanes) {
      const int n = std::min(kLanes, columns - c);
      F sum = a.bias ? isa::load_n(a.bias + from + c, n) : isa::zero();
      for (int j = 0; j < a.taps; j++) {
        const float* w = a.weight + ptrdiff_t(j) * a.columns + from + c;
        sum = isa::fma(isa::load_n(w, n), isa::load_n(input(r, before - j) + c, n), sum);
      }
      isa::store_n(out + c, sum, n);
    }
    if (float* state = run.kept(r))
      for (int j = 0; j < before; j++)
        std::memcpy(state + ptrdiff_t(j) * a.columns + from, input(r, before - 1 - j),
                    sizeof(float) * size_t(columns));
  }
}

// Σ of the parts, in order.
inline void join(const F (&parts)[kParts][kVectors], F* sum) {
  for (int j = 0; j < kVectors; j++) {
    sum[j] = parts[0][j];
    for (int p = 1; p < kParts; p++) sum[j] = isa::add(sum[j], parts[p][j]);
  }
}

inline void clear(F (&parts)[kParts][kVectors]) {
#pragma GCC unroll 16
  for (int p = 0; p < kParts; p++)
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; j++) parts[p][j] = isa::zero();
}

// sum[c] = Σ_i x[i] · s[i][c]
inline void read_tile(const float* s, const float* x, int n, F* sum) {
  F parts[kParts][kVectors];
  clear(parts);
  int i = 0;
  for (; i + kParts <= n; i += kParts)
#pragma GCC unroll 16
    for (int p = 0; p < kParts; p++)
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; j++)
        parts[p][j] =
            isa::fma(isa::set1(x[i + p]), isa::load(s + (i + p) * kTile + j * kLanes), parts[p][j]);
  for (; i < n; i++)
    for (int j = 0; j < kVectors; j++)
      parts[0][j] = isa::fma(isa::set1(x[i]), isa::load(s + i * kTile + j * kLanes), parts[0][j]);
  join(parts, sum);
}

// s[i][c] = decay · s[i][c] + k[i] · u[c], then sum[c] = Σ_i q[i] · s[i][c]
inline void write_tile(float* s, const float* k, const float* q, int n, F decay, const F* u,
                       F* sum) {
  F parts[kParts][kVectors];
  clear(parts);
  auto one = [&](int i, F(&part)[kVectors]) {
    const F key = isa::set1(k[i]), query = isa::set1(q[i]);
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; j++) {
      float* at = s + i * kTile + j * kLanes;
      const F now = isa::fma(key, u[j], isa::mul(decay, isa::load(at)));
      isa::store(at, now);
      part[j] = isa::fma(query, now, part[j]);
    }
  };
  int i = 0;
  for (; i + kParts <= n; i += kParts)
#pragma GCC unroll 16
    for (int p = 0; p < kParts; p++) one(i + p, parts[p]);
  for (; i < n; i++) one(i, parts[0]);
  join(parts, sum);
}

struct Tile {
  int head, key_head, from, columns;  // columns [from, from + columns) of the head's values
  ptrdiff_t at;                       // its place in the layer's state, in floats
};

Tile tile_of(const RecurArgs& a, int index) {
  const int tiles = (a.value_dim + kTile - 1) / kTile;
  Tile t;
  t.head = index / tiles;
  t.key_head = a.tiled ? t.head % a.key_heads : t.head / (a.heads / a.key_heads);
  t.from = index % tiles * kTile;
  t.columns = std::min(kTile, a.value_dim - t.from);
  t.at = (ptrdiff_t(t.head) * a.value_dim + t.from) * a.key_dim;
  return t;
}

void recur_tile(const RecurArgs& a, const Run& run, const Tile& t, float* s) {
  const size_t bytes = sizeof(float) * size_t(t.columns);
  std::memset(s, 0, sizeof(float) * size_t(a.key_dim) * kTile);
  if (run.past > 0) {
    const float* state = run.after(run.past) + t.at;
    for (int i = 0; i < a.key_dim; i++) std::memcpy(s + i * kTile, state + i * t.columns, bytes);
  }
  const ptrdiff_t column = ptrdiff_t(t.head) * a.value_dim + t.from;
  const F rate = isa::set1(a.rate[t.head]);
  const F skip = isa::set1(a.skip ? a.skip[t.head] : 0.0f);
  for (int r = 0; r < run.rows; r++) {
    const int row = run.row + r;
    const float* k = a.k.row(row) + ptrdiff_t(t.key_head) * a.key_dim;
    const float* q = a.q.row(row) + ptrdiff_t(t.key_head) * a.key_dim;
    const F decay = isa::exp(isa::mul(rate, isa::set1(a.step.row(row)[t.head])));
    const F gain = isa::set1(a.gain.row(row)[t.head]);
    alignas(64) float value[kTile] = {};
    std::memcpy(value, a.v.row(row) + column, bytes);
    F u[kVectors], sum[kVectors];
    if (a.delta) read_tile(s, k, a.key_dim, sum);
    for (int j = 0; j < kVectors; j++) {
      u[j] = isa::load(value + j * kLanes);
      if (a.delta) u[j] = isa::sub(u[j], isa::mul(decay, sum[j]));
      u[j] = isa::mul(gain, u[j]);
    }
    write_tile(s, k, q, a.key_dim, decay, u, sum);
    for (int j = 0; j < kVectors; j++) {
      if (a.skip) sum[j] = isa::fma(skip, isa::load(value + j * kLanes), sum[j]);
      isa::store(value + j * kLanes, sum[j]);
    }
    std::memcpy(a.out + row * a.out_stride + column, value, bytes);
    if (float* state = run.kept(r))
      for (int i = 0; i < a.key_dim; i++)
        std::memcpy(state + t.at + i * t.columns, s + i * kTile, bytes);
  }
}

int conv_tiles(const ShortConvArgs& a) { return (a.columns + kConvColumns - 1) / kConvColumns; }

int recur_tiles(const RecurArgs& a) { return a.heads * ((a.value_dim + kTile - 1) / kTile); }

}  // namespace

int short_conv_units(const ShortConvArgs& a) { return a.state.sequences * conv_tiles(a); }

void short_conv(const ShortConvArgs& a, int begin, int end) {
  const int tiles = conv_tiles(a);
  for (int unit = begin; unit < end; unit++) {
    const int from = unit % tiles * kConvColumns;
    convolve(a, Run(a.state, unit / tiles), from, std::min(kConvColumns, a.columns - from));
  }
}

int recur_units(const RecurArgs& a) { return a.state.sequences * recur_tiles(a); }

void recur(const RecurArgs& a, int begin, int end) {
  // A cache line more, to begin on one.
  thread_local std::vector<float> kept;
  kept.resize(std::max(kept.size(), size_t(a.key_dim) * kTile + 16));
  float* s = kept.data() + (64 - reinterpret_cast<uintptr_t>(kept.data()) % 64) % 64 / 4;
  const int tiles = recur_tiles(a);
  for (int unit = begin; unit < end; unit++)
    recur_tile(a, Run(a.state, unit / tiles), tile_of(a, unit % tiles), s);
}

}  // namespace gm::inline GM_ISA
