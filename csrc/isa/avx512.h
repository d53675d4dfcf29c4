// AVX-512 (F, BW, VL, DQ, VNNI, BF16): 16 lanes.
#pragma once
#include <immintrin.h>

#include <cstdint>

#define GM_ISA avx512
#define GM_ISA_NAME "avx512"

namespace gm::inline GM_ISA::isa {

constexpr int kLanes = 16;
// Weights that need all eight bits are stored plus 128: vpdpbusd wants them unsigned.
constexpr int kWideBias = 128;
constexpr bool kDotBf16 = true;
// Most rows of activations a linear kernel keeps in registers at once.
// (A sanitized build has fewer, or its kernels take minutes to compile.)
#ifndef GM_MAX_ROWS
#define GM_MAX_ROWS 12
#endif
constexpr int kMaxRows = GM_MAX_ROWS;
constexpr int kMaxFloatRows = GM_MAX_ROWS;
// Queries an attention tile keeps in registers, for 2 vectors of 16 keys each.
constexpr int kQueryTile = 8;

using F = __m512;
using I32 = __m512i;
using I8 = __m512i;  // kLanes rows of 4 bytes

inline F zero() { return _mm512_setzero_ps(); }
inline F set1(float x) { return _mm512_set1_ps(x); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline F load_n(const float* p, int n) { return _mm512_maskz_loadu_ps((1u << n) - 1, p); }
inline void store_n(float* p, F x, int n) { _mm512_mask_storeu_ps(p, (1u << n) - 1, x); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline F abs(F a) { return _mm512_abs_ps(a); }
inline F round(F a) { return _mm512_roundscale_ps(a, 0); }
// a · 2^n for integral n within the exponent range of float.
inline F ldexp(F a, F n) { return _mm512_scalef_ps(a, n); }
inline float sum(F a) { return _mm512_reduce_add_ps(a); }
inline float max_of(F a) { return _mm512_reduce_max_ps(a); }

inline F load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void store_f16(uint16_t* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline F load_bf16(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
inline F load_u8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline F load_s8(const int8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// 2^(e - 127) for kLanes bytes (E8M0 scales); e = 0 gives 2^-127.
inline F load_e8m0(const uint8_t* p) {
  __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  __m512i bits = _mm512_slli_epi32(e, 23);
  bits = _mm512_mask_mov_epi32(bits, _mm512_testn_epi32_mask(e, e), _mm512_set1_epi32(0x400000));
  return _mm512_castsi512_ps(bits);
}

// Floats of 8 bits (half.h): a half's bits, 256 times too small.
inline F load_e4m3(const uint8_t* p) {
  __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  __m256i sign = _mm256_and_si256(_mm256_slli_epi16(x, 8), _mm256_set1_epi16(short(0x8000)));
  __m256i rest = _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16(0x3f80));
  return mul(_mm512_cvtph_ps(_mm256_or_si256(sign, rest)), set1(256.0f));
}

inline I8 load_i8(const void* p) { return _mm512_loadu_si512(p); }
inline I8 set1_i8(uint8_t x) { return _mm512_set1_epi8(static_cast<char>(x)); }
inline I8 and_i8(I8 a, I8 b) { return _mm512_and_si512(a, b); }
inline I8 or_i8(I8 a, I8 b) { return _mm512_or_si512(a, b); }
// Shifts work on wider lanes: bits cross byte borders, so the caller masks.
template <int N>
inline I8 shr_i8(I8 a) {
  return _mm512_srli_epi16(a, N);
}
template <int N>
inline I8 shl_i8(I8 a) {
  return _mm512_slli_epi16(a, N);
}
// table[a] for codes below 16.
inline I8 load_table(const void* p16) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p16)));
}
inline I8 lookup(I8 table, I8 a) { return _mm512_shuffle_epi8(table, a); }

// Two numbers of 16 bits a lane.
inline I8 set1_u16(uint16_t x) { return _mm512_set1_epi16(static_cast<short>(x)); }
template <int N>
inline I8 shr_u16(I8 a) {
  return _mm512_srli_epi16(a, N);
}
template <int N>
inline I8 shl_u16(I8 a) {
  return _mm512_slli_epi16(a, N);
}
// Eight numbers.
inline I8 load_table_u16(const uint16_t* p8) { return load_table(p8); }
// (a & mask) | c
inline I8 and_or(I8 a, I8 mask, I8 c) { return _mm512_ternarylogic_epi64(a, mask, c, 0xea); }
// table[a % 8] where x & mask is 0, else `other`. The table lies four times in the vector, of
// whose places the lowest five bits name one.
inline I8 lookup_where_zero_u16(I8 x, I8 mask, I8 table, I8 a, I8 other) {
  return _mm512_mask_permutexvar_epi16(other, _mm512_testn_epi16_mask(x, mask), a, table);
}
// The even and odd half of each pair, widened.
inline F even_f16(I8 w) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(w)); }
inline F odd_f16(I8 w) { return even_f16(_mm512_srli_epi32(w, 16)); }

inline I32 load1_i32(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return _mm512_set1_epi32(x);
}
inline I32 add_i32(I32 a, I32 b) { return _mm512_add_epi32(a, b); }
inline int sum_i32(I32 a) { return _mm512_reduce_add_epi32(a); }
inline I32 zero_i32() { return _mm512_setzero_si512(); }
template <int N>
inline I32 sar(I32 a) {
  return _mm512_srai_epi32(a, N);
}
template <int N>
inline I32 shl(I32 a) {
  return _mm512_slli_epi32(a, N);
}
inline F to_f(I32 a) { return _mm512_cvtepi32_ps(a); }
inline I32 to_i32(F a) { return _mm512_cvtps_epi32(a); }
// Stores the low byte of each lane.
inline void store_low8(int8_t* p, I32 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
}

// acc[r] += sum over 4 of w[r][i] · a[i]; w in 0…127 (dot) or the wide form (dot_wide).
inline I32 dot(I32 acc, I8 w, const void* a4) { return _mm512_dpbusd_epi32(acc, w, load1_i32(a4)); }
inline I32 dot_wide(I32 acc, I8 w, const void* a4) { return dot(acc, w, a4); }
// acc[r] += w[r][0] · a[0] + w[r][1] · a[1] in bfloat16.
inline F dot_bf16(F acc, I8 w, const void* a2) {
  return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)load1_i32(a2));
}
// The even and odd bfloat16 of each pair, widened.
inline F even_bf16(I8 w) { return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)); }
inline F odd_bf16(I8 w) {
  return _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(int(0xffff0000u))));
}

}  // namespace gm::inline GM_ISA::isa
