#include "linear.h"

#include <algorithm>
#include <cstring>

namespace gm::inline GM_ISA {

Act Segment::act() const {
  return with_codec(codec, []<class C>() { return C::kAct; });
}

namespace {

// Weights of a group of tiles that stay in the second-level cache while every row block of a
// prompt meets them.
constexpr size_t kGroupBytes = 192 * 1024;

const TileFn* table_of(CodecId id) {
  return with_codec(id, []<class C>() { return tile_table<C>(); });
}

void run_group(const LinearArgs& args, const Segment& s, int tile0, int tile1, int last) {
  Act act = s.act();
  const TileFn* table = table_of(s.codec);
  RowBlocks blocks(args.rows, act);
  size_t row_bytes = panel_row_bytes(act, s.k);
  for (int b = 0; b < blocks.count; b++) {
    int row = blocks.start(b);
    TileCall call{&s,
                  tile0,
                  tile1,
                  last,
                  args.panels[int(act)] + size_t(row) * row_bytes,
                  args.out + row * args.out_stride,
                  args.out_stride,
                  args.bias,
                  args.residual ? args.residual + row * args.residual_stride : nullptr,
                  args.residual_stride};
    table[blocks.size(b) - 1](call);
  }
}

}  // namespace

int linear_units(const std::vector<Segment>& segments) {
  int tiles = 0;
  for (const Segment& s : segments) tiles += s.tiles();
  return tiles;
}

void linear(const LinearArgs& args, int begin, int end) {
  int first = 0;
  for (const Segment& s : *args.segments) {
    const int from = std::max(begin - first, 0), to = std::min(end - first, s.tiles());
    const int step = std::max(1, int(kGroupBytes / s.tile_bytes));
    for (int t = from; t < to; t += step) run_group(args, s, t, std::min(t + step, to), s.tiles());
    first += s.tiles();
  }
}

namespace {

template <class C>
void decode_float_row(const Segment& s, const uint8_t* tile, int lane, float* out) {
  for (int k = 0; k < s.k; k++) {
    if constexpr (std::is_same_v<C, F32Codec>) {
      std::memcpy(out + k, tile + (size_t(k) * kLanes + lane) * 4, 4);
    } else if constexpr (std::is_same_v<C, F16Codec>) {
      uint16_t h;
      std::memcpy(&h, tile + (size_t(k) * kLanes + lane) * 2, 2);
      out[k] = half_to_float(h);
    } else {
      uint16_t h;
      std::memcpy(&h, tile + size_t(k / 2) * kVec + lane * 4 + (k & 1) * 2, 2);
      out[k] = bf16_to_float(h);
    }
  }
}

// What the 32 codes of a row of the block at `values` stand for.
template <class V>
void read_codes(const uint8_t* values, int lane, int codes[32]) {
  alignas(64) uint8_t bytes[8][kVec];
  [&]<int... J>(std::integer_sequence<int, J...>) {
    (
        (void)[&] {
          isa::I8 v = V::template vec<J>(values);
          std::memcpy(bytes[J], &v, kVec);
        }(),
        ...);
  }(std::make_integer_sequence<int, 8>{});
  for (int i = 0; i < 32; i++) {
    uint8_t byte = bytes[i / 4][lane * 4 + i % 4];
    bool is_signed = V::kWide && isa::kWideBias == 0;
    codes[i] = is_signed ? int(int8_t(byte)) : int(byte) - V::kOffset;
  }
}

template <class C>
void decode_quantised_row(const Segment& s, const uint8_t* tile, int lane, float* out) {
  using V = typename C::Values;
  using S = typename C::Scales;
  const uint8_t *values = tile, *scales = tile + C::values_bytes(s.k);
  for (int unit = 0; unit < s.k / C::kGranule; unit++) {
    typename S::Head head(scales);
    scales += S::kHead;
    for (int b = 0; b < S::kUnit; b++) {
      int codes[32];
      read_codes<V>(values, lane, codes);
      alignas(64) float scale[2][kLanes], low[2][kLanes] = {};
      isa::store(scale[0], S::template scale<0>(head, scales));
      isa::store(scale[1], S::template scale<S::kSub == 16>(head, scales));
      if constexpr (S::kLow) {
        isa::store(low[0], S::template low<0>(head, scales));
        isa::store(low[1], S::template low<S::kSub == 16>(head, scales));
      }
      for (int i = 0; i < 32; i++) {
        *out++ = scale[i / 16][lane] * float(codes[i]) + low[i / 16][lane];
      }
      values += V::kBytes;
      scales += S::kBlock;
    }
  }
}

// As the format says it: (code − zero) · scale, or code · scale + low, in float.
template <class C>
void decode_grouped_row(const Segment& s, const uint8_t* tile, int lane, float* out) {
  using V = typename C::Values;
  const Grouping& g = s.grouping;
  const uint8_t *values = tile, *head = tile + C::values_bytes(s.k);
  for (int b = 0; b < s.k / 32; b++, values += V::kBytes) {
    if (b > 0 && b % g.blocks == 0) head += g.bytes();
    if constexpr (std::is_same_v<C, Nvfp4Codec>) {
      int codes[32];
      read_codes<V>(values, lane, codes);
      const uint8_t* of_halves = tile + C::values_bytes(s.k) + size_t(b) * 2 * g.bytes();
      for (int i = 0; i < 32; i++)
        *out++ = 0.5f * float(codes[i]) * g.scaled(g.get(of_halves + i / 16 * g.bytes(), lane));
    } else if constexpr (std::is_same_v<C, BookCodec>) {
      int codes[32];
      read_codes<V>(values, lane, codes);
      for (int code : codes) *out++ = g.book->values[code] * g.get(head, lane);
    } else if constexpr (kIsFloats<C>) {
      for (int i = 0; i < 32; i++) *out++ = g.get(head, lane) * V::value(values, lane, i);
    } else {
      const uint8_t* others = g.others(head);
      float scale = g.get(head, lane), zero = 0.0f, low = 0.0f;
      int codes[32];
      if (g.beside == Beside::zeros) zero = float(others[lane]);
      if (g.beside == Beside::float_zeros) zero = g.get(others, lane);
      if (g.beside == Beside::lows) low = g.get(others, lane);
      read_codes<V>(values, lane, codes);
      // Codes of 8 bits come less 128.
      constexpr int kCentre = C::Scales::kLow && V::kWide ? 128 : 0;
      for (int code : codes) *out++ = scale * (float(code + kCentre) - zero) + low;
    }
  }
}

}  // namespace

void decode_row(const Segment& s, int row, float* out) {
  const uint8_t* tile = s.data + size_t(row / kLanes) * s.tile_bytes;
  with_codec(s.codec, [&]<class C>() {
    if constexpr (kIsGrouped<C>)
      decode_grouped_row<C>(s, tile, row % kLanes, out);
    else if constexpr (kIsQuantised<C>)
      decode_quantised_row<C>(s, tile, row % kLanes, out);
    else
      decode_float_row<C>(s, tile, row % kLanes, out);
  });
}

}  // namespace gm::inline GM_ISA
