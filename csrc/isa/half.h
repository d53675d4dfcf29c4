// Half and bfloat16 conversions in plain C++, for packing and for levels without instructions.
#pragma once
#include <bit>
#include <cstdint>

namespace gm {
namespace {

inline float half_to_float(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 0x3ff;
  if (e == 31) return std::bit_cast<float>(sign | 0x7f800000u | m << 13);
  if (e != 0) return std::bit_cast<float>(sign | (e + 112) << 23 | m << 13);
  float x = static_cast<float>(m) * 0x1p-24f;  // exact: subnormals of half are normal floats
  return sign ? -x : x;
}

// Round to nearest, ties to even.
inline uint16_t float_to_half(float f) {
  uint32_t x = std::bit_cast<uint32_t>(f);
  uint32_t sign = (x >> 16) & 0x8000, a = x & 0x7fffffff;
  if (a > 0x7f800000) return uint16_t(sign | 0x7e00);
  if (a >= 0x477ff000) return uint16_t(sign | 0x7c00);
  if (a < 0x38800000) {  // subnormal: adding 0.5 makes the FPU round at 2^-24
    float t = std::bit_cast<float>(a) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(t) - 0x3f000000u));
  }
  uint32_t odd = (a >> 13) & 1;
  return uint16_t(sign | ((a + 0xfff + odd - (112u << 23)) >> 13));
}

// Eight-bit floats E4M3: as halves they are 256 times too small. Exact both ways; what E4M3 does
// not hold becomes another value.
inline float e4m3_to_float(uint8_t x) {
  return half_to_float(uint16_t((x & 0x80) << 8 | (x & 0x7f) << 7)) * 256.0f;
}
inline uint8_t float_to_e4m3(float f) {
  const uint16_t h = float_to_half(f / 256.0f);
  return uint8_t((h >> 8 & 0x80) | (h >> 7 & 0x7f));
}

inline float bf16_to_float(uint16_t b) { return std::bit_cast<float>(uint32_t(b) << 16); }

inline uint16_t float_to_bf16(float f) {
  uint32_t x = std::bit_cast<uint32_t>(f);
  if ((x & 0x7fffffff) > 0x7f800000) return uint16_t((x >> 16) | 0x40);
  return uint16_t((x + 0x7fff + ((x >> 16) & 1)) >> 16);
}

}  // namespace
}  // namespace gm
