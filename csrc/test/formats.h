// The weight formats once more, value by value and in double precision: what the packed
// kernels are tested against. Written from the formats' description, not from codec/.
#pragma once
#include <cmath>
#include <vector>

#include "../codec/codec.h"
#include "check.h"

namespace test {

using gm::CodecId;

inline double half_at(const uint8_t* p) {
  uint16_t h = static_cast<uint16_t>(p[0] | p[1] << 8);
  int e = h >> 10 & 31, m = h & 1023;
  double x = e == 0 ? std::ldexp(m, -24) : std::ldexp(1024 + m, e - 25);
  return h & 0x8000 ? -x : x;
}

struct Format {
  int block;  // weights of a block
  int bytes;
  std::vector<int> halves;  // where the half-precision fields of a block are
};

inline Format format_of(CodecId codec) {
  switch (codec) {
    case CodecId::f32:
      return {1, 4, {}};
    case CodecId::f16:
    case CodecId::bf16:
      return {1, 2, {}};
    case CodecId::q8_0:
      return {32, 34, {0}};
    case CodecId::q4_0:
    case CodecId::iq4_nl:
      return {32, 18, {0}};
    case CodecId::q4_1:
      return {32, 20, {0, 2}};
    case CodecId::q5_0:
      return {32, 22, {0}};
    case CodecId::q5_1:
      return {32, 24, {0, 2}};
    case CodecId::q2_k:
      return {256, 84, {80, 82}};
    case CodecId::q3_k:
      return {256, 110, {108}};
    case CodecId::q4_k:
      return {256, 144, {0, 2}};
    case CodecId::q5_k:
      return {256, 176, {0, 2}};
    case CodecId::q6_k:
      return {256, 210, {208}};
    case CodecId::iq4_xs:
      return {256, 136, {0}};
    case CodecId::mxfp4:
      return {32, 17, {}};
    default:  // codes in groups are no blocks of a file
      break;
  }
  return {1, 0, {}};
}

// A weight as a product and a summand: the second is 0 where a format has no minimum.
struct Value {
  double product, low = 0;
  double sum() const { return product + low; }
};

inline int nibble_of_32(const uint8_t* q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }

inline int iq4_value(int code) {
  const int values[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  return values[code];
}

inline double e2m1_value(int code) {
  const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -values[code & 7] : values[code & 7];
}

// A float of 8 bits: `exponent` bits of it biased by `bias`.
inline double small_float(int code, int exponent, int bias) {
  const int fraction = 7 - exponent, m = code & ((1 << fraction) - 1);
  const int e = code >> fraction & ((1 << exponent) - 1);
  const double x = e == 0 ? std::ldexp(m, 1 - bias - fraction)
                          : std::ldexp(m + (1 << fraction), e - bias - fraction);
  return code & 128 ? -x : x;
}

// 6-bit scale and minimum number i of the 12 bytes of Q4_K and Q5_K.
inline void scale_and_minimum(const uint8_t* s, int i, int& scale, int& minimum) {
  if (i < 4) {
    scale = s[i] & 63;
    minimum = s[i + 4] & 63;
  } else {
    scale = (s[i + 4] & 15) + (s[i - 4] >> 6) * 16;
    minimum = (s[i + 4] >> 4) + (s[i] >> 6) * 16;
  }
}

// Weight number i of the block (or super-block) at p.
inline Value small_block(CodecId codec, const uint8_t* p, int i) {
  auto fifth = [&](int at) { return (p[at + i / 8] >> i % 8 & 1) * 16; };
  switch (codec) {
    case CodecId::q8_0:
      return {half_at(p) * static_cast<int8_t>(p[2 + i])};
    case CodecId::q4_0:
      return {half_at(p) * (nibble_of_32(p + 2, i) - 8)};
    case CodecId::iq4_nl:
      return {half_at(p) * iq4_value(nibble_of_32(p + 2, i))};
    case CodecId::q4_1:
      return {half_at(p) * nibble_of_32(p + 4, i), half_at(p + 2)};
    case CodecId::q5_0:
      return {half_at(p) * (nibble_of_32(p + 6, i) + fifth(2) - 16)};
    case CodecId::q5_1:
      return {half_at(p) * (nibble_of_32(p + 8, i) + fifth(4)), half_at(p + 2)};
    default:
      return {std::ldexp(e2m1_value(nibble_of_32(p + 1, i)), p[0] - 127)};
  }
}

inline Value super_block(CodecId codec, const uint8_t* p, int i) {
  const int half = i / 128, part = i % 128 / 32, byte = i % 32, sixteen = i / 16;
  switch (codec) {
    case CodecId::q2_k: {
      int q = p[16 + 32 * half + byte] >> 2 * part & 3;
      return {half_at(p + 80) * (p[sixteen] & 15) * q, -half_at(p + 82) * (p[sixteen] >> 4)};
    }
    case CodecId::q3_k: {
      int q = (p[32 + 32 * half + byte] >> 2 * part & 3) - (p[byte] >> i / 32 & 1 ? 0 : 4);
      const uint8_t* s = p + 96;
      int low = sixteen < 8 ? s[sixteen] & 15 : s[sixteen - 8] >> 4;
      int scale = low + (s[8 + sixteen % 4] >> 2 * (sixteen / 4) & 3) * 16 - 32;
      return {half_at(p + 108) * scale * q};
    }
    case CodecId::q4_k:
    case CodecId::q5_k: {
      bool five = codec == CodecId::q5_k;
      int scale, minimum, b = p[(five ? 48 : 16) + 32 * (i / 64) + byte];
      scale_and_minimum(p + 4, i / 32, scale, minimum);
      int q = i / 32 % 2 ? b >> 4 : b & 15;
      if (five) q += (p[16 + byte] >> i / 32 & 1) * 16;
      return {half_at(p) * scale * q, -half_at(p + 2) * minimum};
    }
    case CodecId::q6_k: {
      int low = p[64 * half + 32 * (part % 2) + byte];
      int q = (part < 2 ? low & 15 : low >> 4) + (p[128 + 32 * half + byte] >> 2 * part & 3) * 16;
      return {half_at(p + 208) * static_cast<int8_t>(p[192 + sixteen]) * (q - 32)};
    }
    default: {  // iq4_xs
      int b = i / 32, high = p[2 + b / 4] >> 2 * (b % 4) & 3;
      int scale = (p[4 + b / 2] >> 4 * (b % 2) & 15) + 16 * high - 32;
      return {half_at(p) * scale * iq4_value(nibble_of_32(p + 8 + 16 * b, byte))};
    }
  }
}

// Weight number k of a row of the file.
inline Value weight_at(CodecId codec, const uint8_t* row, int k) {
  Format f = format_of(codec);
  const uint8_t* p = row + static_cast<size_t>(k / f.block) * static_cast<size_t>(f.bytes);
  if (codec == CodecId::f32) {
    float x;
    std::memcpy(&x, p, 4);
    return {double(x)};
  }
  if (codec == CodecId::f16) return {half_at(p)};
  if (codec == CodecId::bf16) {
    uint32_t bits = static_cast<uint32_t>(p[0]) << 16 | static_cast<uint32_t>(p[1]) << 24;
    float x;
    std::memcpy(&x, &bits, 4);
    return {double(x)};
  }
  return f.block == 32 ? small_block(codec, p, k % 32) : super_block(codec, p, k % 256);
}

inline void put_half(uint8_t* p, float x) {
  uint16_t h = gm::float_to_half(x);
  std::memcpy(p, &h, 2);
}

// A row of k random weights. `extreme`: codes and scales at the ends of their range.
inline std::vector<uint8_t> random_row(CodecId codec, int k, Random& random, bool extreme) {
  Format f = format_of(codec);
  std::vector<uint8_t> row(static_cast<size_t>(k / f.block) * static_cast<size_t>(f.bytes));
  const uint8_t ends[] = {0x00, 0x80, 0x7f, 0xff};
  for (auto& b : row) b = extreme ? ends[random.below(4)] : static_cast<uint8_t>(random.bits());
  for (int block = 0; block < k / f.block; block++) {
    uint8_t* p = row.data() + block * f.bytes;
    float x = std::ldexp(random.normal(), random.below(4) - 6);
    if (codec == CodecId::f32) std::memcpy(p, &x, 4);
    if (codec == CodecId::f16) put_half(p, x);
    if (codec == CodecId::bf16) {
      uint16_t b = gm::float_to_bf16(x);
      std::memcpy(p, &b, 2);
    }
    if (codec == CodecId::mxfp4) p[0] = static_cast<uint8_t>(115 + random.below(20));
    // Now and then a scale of zero or below the normal halves.
    for (int at : f.halves) {
      float d = random.uniform(-0.02f, 0.02f);
      int kind = random.below(12);
      put_half(p + at, kind == 0 ? 0.0f : kind == 1 ? d * 1e-4f : d);
    }
  }
  return row;
}

inline const char* name_of(CodecId codec) {
  switch (codec) {
#define X(type, name) \
  case CodecId::name: \
    return #name;
    GM_CODECS(X)
#undef X
    case CodecId::count:
      break;
  }
  return "?";
}

}  // namespace test
