// AVX2 with FMA and F16C: 8 lanes.
#pragma once
#include <immintrin.h>

#include <cstdint>

#define GM_ISA avx2
#define GM_ISA_NAME "avx2"

namespace gm::inline GM_ISA::isa {

constexpr int kLanes = 8;
// vpmaddubsw saturates when both bytes are large, so wide weights stay signed (see dot_wide).
constexpr int kWideBias = 0;
constexpr bool kDotBf16 = false;
constexpr int kMaxRows = 4;
constexpr int kMaxFloatRows = 4;
constexpr int kQueryTile = 2;

using F = __m256;
using I32 = __m256i;
using I8 = __m256i;

inline F zero() { return _mm256_setzero_ps(); }
inline F set1(float x) { return _mm256_set1_ps(x); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
inline __m256i first_n(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline F load_n(const float* p, int n) { return _mm256_maskload_ps(p, first_n(n)); }
inline void store_n(float* p, F x, int n) { _mm256_maskstore_ps(p, first_n(n), x); }
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }
inline F min(F a, F b) { return _mm256_min_ps(a, b); }
inline F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline F round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F ldexp(F a, F n) {
  // In two halves, so that results below the normal range are rounded, not lost.
  __m256i e = _mm256_cvtps_epi32(n);
  __m256i h = _mm256_srai_epi32(e, 1);
  __m256i bias = _mm256_set1_epi32(127);
  F lo = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(h, bias), 23));
  F hi = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(e, h), bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(a, lo), hi);
}
inline float sum(F a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
inline float max_of(F a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}

inline F load_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void store_f16(uint16_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline F load_bf16(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
inline F load_u8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline F load_s8(const int8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline F load_e8m0(const uint8_t* p) {
  __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  __m256i none = _mm256_cmpeq_epi32(e, _mm256_setzero_si256());
  __m256i tiny = _mm256_and_si256(none, _mm256_set1_epi32(0x400000));
  return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(e, 23), tiny));
}

// Floats of 8 bits (half.h): a half's bits, 256 times too small.
inline F load_e4m3(const uint8_t* p) {
  __m128i x = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  __m128i sign = _mm_and_si128(_mm_slli_epi16(x, 8), _mm_set1_epi16(short(0x8000)));
  __m128i rest = _mm_and_si128(_mm_slli_epi16(x, 7), _mm_set1_epi16(0x3f80));
  return mul(_mm256_cvtph_ps(_mm_or_si128(sign, rest)), set1(256.0f));
}

inline I8 load_i8(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline I8 set1_i8(uint8_t x) { return _mm256_set1_epi8(static_cast<char>(x)); }
inline I8 and_i8(I8 a, I8 b) { return _mm256_and_si256(a, b); }
inline I8 or_i8(I8 a, I8 b) { return _mm256_or_si256(a, b); }
template <int N>
inline I8 shr_i8(I8 a) {
  return _mm256_srli_epi16(a, N);
}
template <int N>
inline I8 shl_i8(I8 a) {
  return _mm256_slli_epi16(a, N);
}
inline I8 load_table(const void* p16) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p16)));
}
inline I8 lookup(I8 table, I8 a) { return _mm256_shuffle_epi8(table, a); }

// Two numbers of 16 bits a lane.
inline I8 set1_u16(uint16_t x) { return _mm256_set1_epi16(static_cast<short>(x)); }
template <int N>
inline I8 shr_u16(I8 a) {
  return _mm256_srli_epi16(a, N);
}
template <int N>
inline I8 shl_u16(I8 a) {
  return _mm256_slli_epi16(a, N);
}
// Eight numbers.
inline I8 load_table_u16(const uint16_t* p8) { return load_table(p8); }
// (a & mask) | c
inline I8 and_or(I8 a, I8 mask, I8 c) { return or_i8(and_i8(a, mask), c); }
// table[a % 8] where x & mask is 0, else `other`: looked up by bytes.
inline I8 lookup_where_zero_u16(I8 x, I8 mask, I8 table, I8 a, I8 other) {
  __m256i low = _mm256_slli_epi16(_mm256_and_si256(a, set1_u16(7)), 1);
  __m256i both = _mm256_or_si256(low, _mm256_slli_epi16(low, 8));
  __m256i found = _mm256_shuffle_epi8(table, _mm256_or_si256(both, set1_u16(0x0100)));
  __m256i none = _mm256_cmpeq_epi16(_mm256_and_si256(x, mask), _mm256_setzero_si256());
  return _mm256_blendv_epi8(other, found, none);
}
// The even and odd half of each pair, widened.
inline F even_f16(I8 w) {
  __m256i x = _mm256_and_si256(w, _mm256_set1_epi32(0xffff));
  x = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08);
  return _mm256_cvtph_ps(_mm256_castsi256_si128(x));
}
inline F odd_f16(I8 w) { return even_f16(_mm256_srli_epi32(w, 16)); }

inline I32 load1_i32(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return _mm256_set1_epi32(x);
}
inline I32 add_i32(I32 a, I32 b) { return _mm256_add_epi32(a, b); }
inline int sum_i32(I32 a) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
inline I32 zero_i32() { return _mm256_setzero_si256(); }
template <int N>
inline I32 sar(I32 a) {
  return _mm256_srai_epi32(a, N);
}
template <int N>
inline I32 shl(I32 a) {
  return _mm256_slli_epi32(a, N);
}
inline F to_f(I32 a) { return _mm256_cvtepi32_ps(a); }
inline I32 to_i32(F a) { return _mm256_cvtps_epi32(a); }
inline void store_low8(int8_t* p, I32 a) {
  __m128i lo = _mm256_castsi256_si128(a), hi = _mm256_extracti128_si256(a, 1);
  __m128i w = _mm_packs_epi32(lo, hi);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(w, w));
}

inline I32 dot(I32 acc, I8 w, const void* a4) {
  __m256i pairs = _mm256_maddubs_epi16(w, load1_i32(a4));
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
// |w| · (a with w's sign): 128 · 127 · 2 still fits 16 bits.
inline I32 dot_wide(I32 acc, I8 w, const void* a4) {
  __m256i a = _mm256_sign_epi8(load1_i32(a4), w);
  __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), a);
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline F even_bf16(I8 w) { return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)); }
inline F odd_bf16(I8 w) {
  return _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(int(0xffff0000u))));
}
inline F dot_bf16(F acc, I8, const void*) { return acc; }  // never called: kDotBf16 is false

}  // namespace gm::inline GM_ISA::isa
