#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ggml.h"

namespace gm::inline GM_ISA {

Codebook::Codebook(const float* table) : unit(0) {
  for (int i = 0; i < 16; i++) unit = std::max(unit, std::fabs(table[i]) / 16383.0f);
  for (int i = 0; i < 16; i++) {
    values[i] = table[i];
    const int whole = unit > 0 ? int(std::lrint(table[i] / unit)) : 0;
    high[i] = uint8_t((whole >> 7) + isa::kWideBias);
    low[i] = uint8_t(whole & 127);
  }
}

namespace {

template <class C>
void pack_quantised_row(const uint8_t* source, uint8_t* tile, int lane, int k) {
  using V = typename C::Values;
  using S = typename C::Scales;
  uint8_t *values = tile, *scales = tile + C::values_bytes(k);
  for (int unit = 0; unit < k / C::kGranule; unit++) {
    uint32_t codes[8 * S::kUnit];
    UnitScales u;
    Ggml<C>::read(source, codes, u);
    source += Ggml<C>::kBytes;
    S::put_head(scales, lane, u);
    scales += S::kHead;
    for (int b = 0; b < S::kUnit; b++) {
      V::put(values, lane, codes + 8 * b);
      S::put_block(scales, lane, b, u);
      values += V::kBytes;
      scales += S::kBlock;
    }
  }
}

template <class C>
void pack_float_row(const uint8_t* source, uint8_t* tile, int lane, int k) {
  if constexpr (std::is_same_v<C, Bf16Codec>) {
    for (int i = 0; i < k; i++)
      std::memcpy(tile + size_t(i / 2) * kVec + lane * 4 + (i & 1) * 2, source + 2 * i, 2);
  } else {
    constexpr int kBytes = C::kBytesPerK;
    for (int i = 0; i < k; i++)
      std::memcpy(tile + (size_t(i) * kLanes + lane) * kBytes, source + kBytes * i, kBytes);
  }
}

template <class C>
bool pack_code_row(const Segment& s, const CodeRows& from, int row) {
  using V = typename C::Values;
  const Grouping& g = s.grouping;
  const int lane = (from.start + row) % kLanes, groups = g.groups(s.k);
  uint8_t* values = s.data + size_t((from.start + row) / kLanes) * s.tile_bytes;
  uint8_t* head = values + C::values_bytes(s.k);
  const uint8_t* codes = from.codes + size_t(row) * size_t(s.k);
  for (int b = 0; b < s.k / 32; b++) {
    uint32_t words[8];
    for (int j = 0; j < 8; j++)
      words[j] = word(codes + 32 * b + 4 * j) ^ (V::kWide ? 0x80808080u : 0);
    V::put(values, lane, words);
    values += V::kBytes;
  }
  bool exact = true;
  for (int i = 0; i < groups; i++, head += g.bytes()) {
    const size_t at = size_t(row) * size_t(groups) + size_t(i);
    exact &= g.put(head, lane, from.scales[at]);
    uint8_t* beside = head + kLanes * g.element();
    if (g.beside == Beside::zeros) beside[lane] = from.zeros[at];
    if (g.beside > Beside::zeros) exact &= g.put(beside, lane, from.others[at]);
  }
  return exact;
}

template <class C>
size_t row_bytes_of(int k) {
  if constexpr (kIsGrouped<C>)
    return 0;  // no file has them so
  else if constexpr (kIsQuantised<C>)
    return size_t(k) / C::kGranule * Ggml<C>::kBytes;
  else
    return size_t(k) * C::kBytesPerK;
}

}  // namespace

size_t source_row_bytes(CodecId codec, int k) {
  return with_codec(codec, [&]<class C>() { return row_bytes_of<C>(k); });
}

int granule(CodecId codec) {
  return with_codec(codec, []<class C>() { return C::kGranule; });
}

size_t packed_tile_bytes(CodecId codec, int k, const Grouping& grouping) {
  return with_codec(codec, [&]<class C>() { return tile_bytes<C>(k, grouping); });
}

void pack(const Segment& s, const uint8_t* source, int begin, int end) {
  with_codec(s.codec, [&]<class C>() {
    size_t row_bytes = row_bytes_of<C>(s.k);
    for (int64_t t = begin; t < end; t++) {
      uint8_t* tile = s.data + size_t(t) * s.tile_bytes;
      for (int lane = 0; lane < kLanes; lane++) {
        int64_t row = t * kLanes + lane;
        if (row >= s.rows) continue;  // fresh memory is zero
        const uint8_t* src = source + size_t(row) * row_bytes;
        if constexpr (kIsGrouped<C>)
          __builtin_unreachable();
        else if constexpr (kIsQuantised<C>)
          pack_quantised_row<C>(src, tile, lane, s.k);
        else
          pack_float_row<C>(src, tile, lane, s.k);
      }
    }
  });
}

// By way of a tile of few columns, so that there is one reader of each encoding.
void decode_source(CodecId codec, int k, const uint8_t* source, float* out) {
  constexpr int kColumns = 256;
  with_codec(codec, [&]<class C>() {
    thread_local std::vector<uint8_t> tile;
    for (int at = 0; at < k; at += kColumns) {
      const int n = std::min(kColumns, k - at);
      tile.assign(tile_bytes<C>(n, {}), 0);
      if constexpr (kIsGrouped<C>)
        __builtin_unreachable();
      else if constexpr (kIsQuantised<C>)
        pack_quantised_row<C>(source, tile.data(), 0, n);
      else
        pack_float_row<C>(source, tile.data(), 0, n);
      decode_row({codec, 1, n, 0, tile.size(), tile.data()}, 0, out + at);
      source += row_bytes_of<C>(n);
    }
  });
}

bool pack_codes(const Segment& s, const CodeRows& source, int begin, int end) {
  return with_codec(s.codec, [&]<class C>() {
    bool exact = true;
    if constexpr (kIsGrouped<C>)
      for (int row = begin; row < end; row++) exact &= pack_code_row<C>(s, source, row);
    return exact;
  });
}

CodecId grouped_codec(int bits, Beside beside, Number number) {
  if (number == Number::e2m1 || number == Number::table) {
    if (bits != 4 || beside != Beside::nothing) return CodecId::count;
    return number == Number::e2m1 ? CodecId::nvfp4 : CodecId::codes4_book;
  }
  if (number != Number::whole) {
    if (bits != 8 || beside != Beside::nothing) return CodecId::count;
    return number == Number::e4m3 ? CodecId::f8_e4m3 : CodecId::f8_e5m2;
  }
  const bool low = beside != Beside::nothing;
  switch (bits) {
    case 2:
      return low ? CodecId::codes2_low : CodecId::codes2;
    case 3:
      return low ? CodecId::codes3_low : CodecId::codes3;
    case 4:
      return low ? CodecId::codes4_low : CodecId::codes4;
    case 5:
      return low ? CodecId::codes5_low : CodecId::codes5;
    case 6:
      return low ? CodecId::codes6_low : CodecId::codes6;
    case 8:
      return low ? CodecId::codes8_low : CodecId::codes8;
    default:
      return CodecId::count;
  }
}

}  // namespace gm::inline GM_ISA
