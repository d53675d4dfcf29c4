// Plain C++, any processor: 8 lanes held in arrays. The specification of every other level.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define GM_ISA scalar
#define GM_ISA_NAME "scalar"

#include "half.h"

namespace gm::inline GM_ISA::isa {

constexpr int kLanes = 8;
constexpr int kWideBias = 0;
constexpr bool kDotBf16 = false;
constexpr int kMaxRows = 4;
constexpr int kMaxFloatRows = 4;
constexpr int kQueryTile = 2;

struct F {
  float v[kLanes];
};
struct I32 {
  int32_t v[kLanes];
};
struct I8 {
  uint8_t v[kLanes * 4];
};

template <class Fn>
inline F each(Fn fn) {
  F r;
  for (int i = 0; i < kLanes; i++) r.v[i] = fn(i);
  return r;
}
template <class Fn>
inline I8 each_i8(Fn fn) {
  I8 r;
  for (int i = 0; i < kLanes * 4; i++) r.v[i] = static_cast<uint8_t>(fn(i));
  return r;
}

inline F set1(float x) {
  return each([&](int) { return x; });
}
inline F zero() { return set1(0.0f); }
inline F load(const float* p) {
  return each([&](int i) { return p[i]; });
}
inline void store(float* p, F x) { std::memcpy(p, x.v, sizeof x.v); }
inline F load_n(const float* p, int n) {
  return each([&](int i) { return i < n ? p[i] : 0.0f; });
}
inline void store_n(float* p, F x, int n) { std::memcpy(p, x.v, sizeof(float) * n); }
inline F add(F a, F b) {
  return each([&](int i) { return a.v[i] + b.v[i]; });
}
inline F sub(F a, F b) {
  return each([&](int i) { return a.v[i] - b.v[i]; });
}
inline F mul(F a, F b) {
  return each([&](int i) { return a.v[i] * b.v[i]; });
}
inline F div(F a, F b) {
  return each([&](int i) { return a.v[i] / b.v[i]; });
}
// Rounded twice, unlike a fused multiply-add: nothing compares bits between levels.
inline F fma(F a, F b, F c) {
  return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline F max(F a, F b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F min(F a, F b) {
  return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F abs(F a) {
  return each([&](int i) { return std::fabs(a.v[i]); });
}
inline F round(F a) {
  return each([&](int i) { return std::nearbyintf(a.v[i]); });
}
inline F ldexp(F a, F n) {
  return each([&](int i) {
    return n.v[i] == n.v[i] ? std::ldexp(a.v[i], static_cast<int>(n.v[i])) : n.v[i];
  });
}
inline float sum(F a) {
  return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
}
inline float max_of(F a) {
  float m = a.v[0];
  for (int i = 1; i < kLanes; i++) m = a.v[i] > m ? a.v[i] : m;
  return m;
}

inline F load_f16(const uint16_t* p) {
  return each([&](int i) { return half_to_float(p[i]); });
}
inline void store_f16(uint16_t* p, F x) {
  for (int i = 0; i < kLanes; i++) p[i] = float_to_half(x.v[i]);
}
inline F load_bf16(const uint16_t* p) {
  return each([&](int i) { return bf16_to_float(p[i]); });
}
inline F load_u8(const uint8_t* p) {
  return each([&](int i) { return static_cast<float>(p[i]); });
}
inline F load_s8(const int8_t* p) {
  return each([&](int i) { return static_cast<float>(p[i]); });
}
inline F load_e8m0(const uint8_t* p) {
  return each([&](int i) { return std::ldexp(1.0f, int(p[i]) - 127); });
}

// Floats of 8 bits: sign, four bits of exponent (bias 7), three of mantissa; none of them NaN.
inline F load_e4m3(const uint8_t* p) {
  return each([&](int i) { return e4m3_to_float(p[i]); });
}

inline I8 load_i8(const void* p) {
  I8 r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
inline I8 set1_i8(uint8_t x) {
  return each_i8([&](int) { return x; });
}
inline I8 and_i8(I8 a, I8 b) {
  return each_i8([&](int i) { return a.v[i] & b.v[i]; });
}
inline I8 or_i8(I8 a, I8 b) {
  return each_i8([&](int i) { return a.v[i] | b.v[i]; });
}
template <int N>
inline I8 shr_i8(I8 a) {
  return each_i8([&](int i) { return a.v[i] >> N; });
}
template <int N>
inline I8 shl_i8(I8 a) {
  return each_i8([&](int i) { return a.v[i] << N; });
}
inline I8 load_table(const void* p16) {
  auto t = static_cast<const uint8_t*>(p16);
  return each_i8([&](int i) { return t[i % 16]; });
}
inline I8 lookup(I8 table, I8 a) {
  return each_i8([&](int i) { return table.v[a.v[i] & 15]; });
}

inline uint16_t half_at(I8 a, int i) { return uint16_t(a.v[2 * i] | a.v[2 * i + 1] << 8); }
template <class Fn>
inline I8 each_u16(Fn fn) {
  I8 r;
  for (int i = 0; i < kLanes * 2; i++) {
    const unsigned x = unsigned(fn(i));
    r.v[2 * i] = static_cast<uint8_t>(x);
    r.v[2 * i + 1] = static_cast<uint8_t>(x >> 8);
  }
  return r;
}
// Two numbers of 16 bits a lane.
inline I8 set1_u16(uint16_t x) {
  return each_u16([&](int) { return x; });
}
template <int N>
inline I8 shr_u16(I8 a) {
  return each_u16([&](int i) { return half_at(a, i) >> N; });
}
template <int N>
inline I8 shl_u16(I8 a) {
  return each_u16([&](int i) { return half_at(a, i) << N; });
}
// Eight numbers.
inline I8 load_table_u16(const uint16_t* p8) {
  return each_u16([&](int i) { return p8[i % 8]; });
}
// (a & mask) | c
inline I8 and_or(I8 a, I8 mask, I8 c) { return or_i8(and_i8(a, mask), c); }
// table[a % 8] where x & mask is 0, else `other`
inline I8 lookup_where_zero_u16(I8 x, I8 mask, I8 table, I8 a, I8 other) {
  return each_u16([&](int i) {
    return half_at(x, i) & half_at(mask, i) ? half_at(other, i) : half_at(table, half_at(a, i) & 7);
  });
}
inline F even_f16(I8 w) {
  return each([&](int i) { return half_to_float(half_at(w, 2 * i)); });
}
inline F odd_f16(I8 w) {
  return each([&](int i) { return half_to_float(half_at(w, 2 * i + 1)); });
}

inline I32 load1_i32(const void* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  I32 r;
  for (int i = 0; i < kLanes; i++) r.v[i] = x;
  return r;
}
inline I32 add_i32(I32 a, I32 b) {
  for (int i = 0; i < kLanes; i++) a.v[i] += b.v[i];
  return a;
}
inline int sum_i32(I32 a) {
  int s = 0;
  for (int i = 0; i < kLanes; i++) s += a.v[i];
  return s;
}
inline I32 zero_i32() { return I32{}; }
template <int N>
inline I32 sar(I32 a) {
  for (int i = 0; i < kLanes; i++) a.v[i] >>= N;
  return a;
}
template <int N>
inline I32 shl(I32 a) {
  for (int i = 0; i < kLanes; i++)
    a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << N);
  return a;
}
inline F to_f(I32 a) {
  return each([&](int i) { return static_cast<float>(a.v[i]); });
}
inline I32 to_i32(F a) {
  I32 r;
  for (int i = 0; i < kLanes; i++) r.v[i] = static_cast<int32_t>(std::nearbyintf(a.v[i]));
  return r;
}
inline void store_low8(int8_t* p, I32 a) {
  for (int i = 0; i < kLanes; i++) p[i] = static_cast<int8_t>(a.v[i]);
}

inline I32 dot(I32 acc, I8 w, const void* a4) {
  auto a = static_cast<const int8_t*>(a4);
  for (int i = 0; i < kLanes; i++)
    for (int k = 0; k < 4; k++) acc.v[i] += static_cast<int8_t>(w.v[i * 4 + k]) * a[k];
  return acc;
}
inline I32 dot_wide(I32 acc, I8 w, const void* a4) { return dot(acc, w, a4); }
inline F even_bf16(I8 w) {
  return each([&](int i) { return bf16_to_float(uint16_t(w.v[i * 4] | w.v[i * 4 + 1] << 8)); });
}
inline F odd_bf16(I8 w) {
  return each([&](int i) { return bf16_to_float(uint16_t(w.v[i * 4 + 2] | w.v[i * 4 + 3] << 8)); });
}
inline F dot_bf16(F acc, I8, const void*) { return acc; }  // never called: kDotBf16 is false

}  // namespace gm::inline GM_ISA::isa
