// arm64: 4 lanes. GM_NEON promises armv8.0 only, GM_DOTPROD adds SDOT (v8.2), GM_I8MM adds
// SMMLA and BFDOT (v8.6, and v8.4 processors that bring them early).
#pragma once
#include <arm_neon.h>

#include <cstdint>

#if defined(GM_I8MM)
#define GM_ISA i8mm
#define GM_ISA_NAME "i8mm"
#elif defined(GM_DOTPROD)
#define GM_ISA dotprod
#define GM_ISA_NAME "dotprod"
#else
#define GM_ISA neon
#define GM_ISA_NAME "neon"
#endif

namespace gm::inline GM_ISA::isa {

constexpr int kLanes = 4;
constexpr int kWideBias = 0;  // SDOT and SMULL take both operands signed
#if defined(GM_I8MM)
constexpr bool kDotBf16 = true;
#else
constexpr bool kDotBf16 = false;
#endif
// 32 registers: 8 integer and 8 float accumulators leave 16 for weights and scales.
constexpr int kMaxRows = 8;
constexpr int kMaxFloatRows = 8;
constexpr int kQueryTile = 4;

using F = float32x4_t;
using I32 = int32x4_t;
using I8 = int8x16_t;  // kLanes rows of 4 bytes

inline F zero() { return vdupq_n_f32(0.0f); }
inline F set1(float x) { return vdupq_n_f32(x); }
inline F load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, F x) { vst1q_f32(p, x); }
// No masked loads here: a tail goes through four floats on the stack.
inline F load_n(const float* p, int n) {
  if (n == kLanes) return vld1q_f32(p);
  float t[kLanes] = {};
  __builtin_memcpy(t, p, sizeof(float) * static_cast<unsigned>(n));
  return vld1q_f32(t);
}
inline void store_n(float* p, F x, int n) {
  if (n == kLanes) return vst1q_f32(p, x);
  float t[kLanes];
  vst1q_f32(t, x);
  __builtin_memcpy(p, t, sizeof(float) * static_cast<unsigned>(n));
}
inline F add(F a, F b) { return vaddq_f32(a, b); }
inline F sub(F a, F b) { return vsubq_f32(a, b); }
inline F mul(F a, F b) { return vmulq_f32(a, b); }
inline F div(F a, F b) { return vdivq_f32(a, b); }
inline F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
inline F max(F a, F b) { return vmaxq_f32(a, b); }
inline F min(F a, F b) { return vminq_f32(a, b); }
inline F abs(F a) { return vabsq_f32(a); }
inline F round(F a) { return vrndnq_f32(a); }
inline F ldexp(F a, F n) {
  // In two halves, so that results below the normal range are rounded, not lost.
  int32x4_t e = vcvtnq_s32_f32(n);
  int32x4_t h = vshrq_n_s32(e, 1);
  int32x4_t bias = vdupq_n_s32(127);
  F lo = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(h, bias), 23));
  F hi = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vsubq_s32(e, h), bias), 23));
  return vmulq_f32(vmulq_f32(a, lo), hi);
}
inline float sum(F a) { return vaddvq_f32(a); }
inline float max_of(F a) { return vmaxvq_f32(a); }

// Half conversion is part of armv8.0; only half arithmetic came later.
inline F load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline void store_f16(uint16_t* p, F x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
inline F load_bf16(const uint16_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
// kLanes bytes, widened to 32 bits. Loaded as one word: a vector load would read too far.
inline uint32x4_t widen_u8(const void* p) {
  uint32_t x;
  __builtin_memcpy(&x, p, 4);
  return vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(x)))));
}
inline F load_u8(const uint8_t* p) { return vcvtq_f32_u32(widen_u8(p)); }
inline F load_s8(const int8_t* p) {
  uint32_t x;
  __builtin_memcpy(&x, p, 4);
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(x))))));
}
inline F load_e8m0(const uint8_t* p) {
  uint32x4_t e = widen_u8(p);
  uint32x4_t tiny = vandq_u32(vceqzq_u32(e), vdupq_n_u32(0x400000));
  return vreinterpretq_f32_u32(vorrq_u32(vshlq_n_u32(e, 23), tiny));
}

// Floats of 8 bits (half.h): a half's bits, 256 times too small.
inline F load_e4m3(const uint8_t* p) {
  uint16x4_t x = vmovn_u32(widen_u8(p));
  uint16x4_t sign = vand_u16(vshl_n_u16(x, 8), vdup_n_u16(0x8000));
  uint16x4_t rest = vand_u16(vshl_n_u16(x, 7), vdup_n_u16(0x3f80));
  return mul(vcvt_f32_f16(vreinterpret_f16_u16(vorr_u16(sign, rest))), set1(256.0f));
}

inline I8 load_i8(const void* p) { return vld1q_s8(static_cast<const int8_t*>(p)); }
inline I8 set1_i8(uint8_t x) { return vreinterpretq_s8_u8(vdupq_n_u8(x)); }
inline I8 and_i8(I8 a, I8 b) { return vandq_s8(a, b); }
inline I8 or_i8(I8 a, I8 b) { return vorrq_s8(a, b); }
template <int N>
inline I8 shr_i8(I8 a) {
  if constexpr (N == 0)
    return a;
  else
    return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(a), N));
}
template <int N>
inline I8 shl_i8(I8 a) {
  return vshlq_n_s8(a, N);
}
inline I8 load_table(const void* p16) { return load_i8(p16); }
inline I8 lookup(I8 table, I8 a) { return vqtbl1q_s8(table, vreinterpretq_u8_s8(a)); }

// Two numbers of 16 bits a lane.
inline uint16x8_t as_u16(I8 a) { return vreinterpretq_u16_s8(a); }
inline I8 set1_u16(uint16_t x) { return vreinterpretq_s8_u16(vdupq_n_u16(x)); }
template <int N>
inline I8 shr_u16(I8 a) {
  return vreinterpretq_s8_u16(vshrq_n_u16(as_u16(a), N));
}
template <int N>
inline I8 shl_u16(I8 a) {
  return vreinterpretq_s8_u16(vshlq_n_u16(as_u16(a), N));
}
// Eight numbers.
inline I8 load_table_u16(const uint16_t* p8) { return load_i8(p8); }
// (a & mask) | c
inline I8 and_or(I8 a, I8 mask, I8 c) { return vorrq_s8(vandq_s8(a, mask), c); }
// table[a % 8] where x & mask is 0, else `other`: looked up by bytes.
inline I8 lookup_where_zero_u16(I8 x, I8 mask, I8 table, I8 a, I8 other) {
  uint16x8_t low = vshlq_n_u16(vandq_u16(as_u16(a), vdupq_n_u16(7)), 1);
  uint16x8_t both = vaddq_u16(vsliq_n_u16(low, low, 8), vdupq_n_u16(0x0100));
  uint16x8_t found = vreinterpretq_u16_s8(vqtbl1q_s8(table, vreinterpretq_u8_u16(both)));
  uint16x8_t some = vtstq_u16(as_u16(x), as_u16(mask));
  return vreinterpretq_s8_u16(vbslq_u16(some, as_u16(other), found));
}
// The even and odd half of each pair, widened.
inline F even_f16(I8 w) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vreinterpretq_u32_s8(w))));
}
inline F odd_f16(I8 w) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(vreinterpretq_u32_s8(w), 16)));
}

inline I32 load1_i32(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return vdupq_n_s32(x);
}
inline I32 add_i32(I32 a, I32 b) { return vaddq_s32(a, b); }
inline int sum_i32(I32 a) { return vaddvq_s32(a); }
inline I32 zero_i32() { return vdupq_n_s32(0); }
template <int N>
inline I32 sar(I32 a) {
  if constexpr (N == 0)
    return a;
  else
    return vshrq_n_s32(a, N);
}
template <int N>
inline I32 shl(I32 a) {
  return vshlq_n_s32(a, N);
}
inline F to_f(I32 a) { return vcvtq_f32_s32(a); }
inline I32 to_i32(F a) { return vcvtnq_s32_f32(a); }
inline void store_low8(int8_t* p, I32 a) {
  int16x4_t h = vmovn_s32(a);
  int8x8_t b = vmovn_s16(vcombine_s16(h, h));
  uint32_t x = vget_lane_u32(vreinterpret_u32_s8(b), 0);
  __builtin_memcpy(p, &x, 4);
}

#if defined(GM_DOTPROD) || defined(GM_I8MM)
inline I32 dot(I32 acc, I8 w, const void* a4) {
  return vdotq_s32(acc, w, vreinterpretq_s8_s32(load1_i32(a4)));
}
#else
// Two products of at most 128 · 127 fit 16 bits, as on AVX2: activations are never -128.
inline I32 dot(I32 acc, I8 w, const void* a4) {
  int8x16_t a = vreinterpretq_s8_s32(load1_i32(a4));
  int16x8_t lo = vmull_s8(vget_low_s8(w), vget_low_s8(a));
  int16x8_t hi = vmull_high_s8(w, a);
  return vpadalq_s16(acc, vpaddq_s16(lo, hi));
}
#endif
inline I32 dot_wide(I32 acc, I8 w, const void* a4) { return dot(acc, w, a4); }

#if defined(GM_I8MM)
// BFDOT rounds to odd inside and treats subnormals as zero: exact enough, and the same for
// every tile, since every tile uses it.
inline F dot_bf16(F acc, I8 w, const void* a2) {
  return vbfdotq_f32(acc, vreinterpretq_bf16_s8(w), vreinterpretq_bf16_s32(load1_i32(a2)));
}
#else
inline F dot_bf16(F acc, I8, const void*) { return acc; }  // never called: kDotBf16 is false
#endif
inline F even_bf16(I8 w) { return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_s8(w), 16)); }
inline F odd_bf16(I8 w) {
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_s8(w), vdupq_n_u32(0xffff0000u)));
}

}  // namespace gm::inline GM_ISA::isa
