// Codecs: a value plane with a scale stream, and the float codecs. A codec is a packed layout;
// the file encodings that pack into it are in pack.cpp.
//
// A matrix is cut into tiles of kLanes rows. A tile is its values for all of K, then its
// scales for all of K, each starting at a multiple of 64 bytes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "fp8.h"
#include "groups.h"
#include "scales.h"
#include "values.h"

namespace gm::inline GM_ISA {

// What a linear op multiplies with: activations as they are, rounded to bfloat16, or quantised
// to int8 with a scale per 32.
enum class Act : int { f32 = 0, bf16 = 1, q8 = 2 };

template <class V, class S>
struct Quantised {
  using Values = V;
  using Scales = S;
  static constexpr Act kAct = Act::q8;
  static constexpr int kGranule = 32 * S::kUnit;  // K is a multiple of it
  static size_t values_bytes(int k) { return (size_t(k) / 32 * V::kBytes + 63) / 64 * 64; }
  static size_t scales_bytes(int k) {
    size_t units = size_t(k) / kGranule;
    return (units * (S::kHead + S::kUnit * S::kBlock) + 63) / 64 * 64;
  }
};

// Codes with a scale per group of columns; the groups are those of the segment (Grouping). A
// tile's scales, one group after the other, lie behind its values.
template <class V, bool Low>
struct Grouped {
  using Values = V;
  using Scales = GroupScale<Low, V::kWide ? 128 : 0>;
  static constexpr Act kAct = Act::q8;
  static constexpr int kGranule = 32;
  static constexpr bool kGrouped = true;
  static size_t values_bytes(int k) { return Quantised<V, HalfScale>::values_bytes(k); }
};

// The same with codes that are floats; they meet activations that are floats as well.
template <class V>
struct GroupedFloats {
  using Values = V;
  static constexpr Act kAct = isa::kDotBf16 ? Act::bf16 : Act::f32;
  static constexpr int kGranule = 32;
  static constexpr bool kGrouped = true, kFloats = true;
  static size_t values_bytes(int k) { return (size_t(k) / 32 * V::kBytes + 63) / 64 * 64; }
};

// Non-linear 4-bit values of IQ4_NL and IQ4_XS, and the values of the 4-bit float E2M1, doubled.
struct Iq4Values {
  static constexpr int8_t kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};
};
struct E2m1Values {
  static constexpr int8_t kValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
};

// Codes of 4 bits that name one of 16 floats (Codebook), which are read in two parts of 8 bits.
struct BookCodec {
  using Values = Bits4<0>;
  using Scales = GroupScale<false, 0>;
  static constexpr Act kAct = Act::q8;
  static constexpr int kGranule = 32;
  static constexpr bool kGrouped = true;
  static size_t values_bytes(int k) { return Quantised<Values, HalfScale>::values_bytes(k); }
};
struct Nvfp4Codec {
  using Values = Table4<E2m1Values>;
  using Scales = HalfBlockScale;
  static constexpr Act kAct = Act::q8;
  static constexpr int kGranule = 32;
  static constexpr bool kGrouped = true;
  static size_t values_bytes(int k) { return Quantised<Values, HalfScale>::values_bytes(k); }
};

// kLanes rows of one k (f32, f16) or of two k (bf16) lie together.
struct F32Codec {
  static constexpr Act kAct = Act::f32;
  static constexpr int kGranule = 1, kBytesPerK = 4;
};
struct F16Codec {
  static constexpr Act kAct = Act::f32;
  static constexpr int kGranule = 1, kBytesPerK = 2;
};
struct Bf16Codec {
  static constexpr Act kAct = isa::kDotBf16 ? Act::bf16 : Act::f32;
  static constexpr int kGranule = 1, kBytesPerK = 2;
};

using Q8_0 = Quantised<Bits8, HalfScale>;
using Q4_0 = Quantised<Bits4<8>, HalfScale>;
using Q4_1 = Quantised<Bits4<0>, HalfScaleLow>;
using Q5_0 = Quantised<Bits5<16>, HalfScale>;
using Q5_1 = Quantised<Bits5<0>, HalfScaleLow>;
using Q2_K = Quantised<Bits2<0>, SuperScaleLow16>;
using Q3_K = Quantised<Bits3<4>, SuperScale16>;
using Q4_K = Quantised<Bits4<0>, SuperScaleLow>;
using Q5_K = Quantised<Bits5<0>, SuperScaleLow>;
using Q6_K = Quantised<Bits6<32>, SuperScale16>;
using Iq4Nl = Quantised<Table4<Iq4Values>, HalfScale>;
using Iq4Xs = Quantised<Table4<Iq4Values>, SuperScale>;
using Mxfp4 = Quantised<Table4<E2m1Values>, PowerScale>;

// Without zeros or lows a code stands for code − half its range.
using Codes2 = Grouped<Bits2<2>, false>;
using Codes3 = Grouped<Bits3<4>, false>;
using Codes4 = Grouped<Bits4<8>, false>;
using Codes5 = Grouped<Bits5<16>, false>;
using Codes6 = Grouped<Bits6<32>, false>;
using Codes8 = Grouped<Bits8, false>;
using Codes2Low = Grouped<Bits2<0>, true>;
using Codes3Low = Grouped<Bits3<0>, true>;
using Codes4Low = Grouped<Bits4<0>, true>;
using Codes5Low = Grouped<Bits5<0>, true>;
using Codes6Low = Grouped<Bits6<0>, true>;
using Codes8Low = Grouped<Bits8, true>;

using F8E4m3 = GroupedFloats<Fp8<E4m3>>;
using F8E5m2 = GroupedFloats<Fp8<E5m2>>;

// Every codec: X(type, name). The order numbers them (CodecId).
#define GM_FLOAT_CODECS(X) X(F32Codec, f32) X(F16Codec, f16) X(Bf16Codec, bf16)
#define GM_QUANTISED_CODECS(X) \
  X(Q8_0, q8_0)                \
  X(Q4_0, q4_0)                \
  X(Q4_1, q4_1)                \
  X(Q5_0, q5_0)                \
  X(Q5_1, q5_1)                \
  X(Q2_K, q2_k)                \
  X(Q3_K, q3_k)                \
  X(Q4_K, q4_k) X(Q5_K, q5_k) X(Q6_K, q6_k) X(Iq4Nl, iq4_nl) X(Iq4Xs, iq4_xs) X(Mxfp4, mxfp4)
#define GM_GROUPED_CODECS(X) \
  X(Codes2, codes2)          \
  X(Codes3, codes3)          \
  X(Codes4, codes4)          \
  X(Codes5, codes5)          \
  X(Codes6, codes6)          \
  X(Codes8, codes8)          \
  X(Codes2Low, codes2_low)   \
  X(Codes3Low, codes3_low)   \
  X(Codes4Low, codes4_low)   \
  X(Codes5Low, codes5_low)   \
  X(Codes6Low, codes6_low)   \
  X(Codes8Low, codes8_low)   \
  X(F8E4m3, f8_e4m3) X(F8E5m2, f8_e5m2) X(Nvfp4Codec, nvfp4) X(BookCodec, codes4_book)
// Those that blocks of a file pack into, and all.
#define GM_FILE_CODECS(X) GM_FLOAT_CODECS(X) GM_QUANTISED_CODECS(X)
#define GM_CODECS(X) GM_FILE_CODECS(X) GM_GROUPED_CODECS(X)

enum class CodecId : int {
#define X(type, name) name,
  GM_CODECS(X)
#undef X
      count
};

// Calls fn.template operator()<Codec>() for the codec of that number.
template <class Fn>
auto with_codec(CodecId id, Fn fn) {
  switch (id) {
#define X(type, name) \
  case CodecId::name: \
    return fn.template operator()<type>();
    GM_CODECS(X)
#undef X
    case CodecId::count:
      break;
  }
  __builtin_unreachable();
}

template <class C>
constexpr bool kIsQuantised = requires { typename C::Values; };

template <class C>
constexpr bool kIsGrouped = requires { C::kGrouped; };

template <class C>
constexpr bool kIsFloats = requires { C::kFloats; };

template <class C>
size_t tile_values_bytes(int k) {
  if constexpr (kIsQuantised<C>)
    return C::values_bytes(k);
  else
    return (size_t(k + (k & 1)) * kLanes * C::kBytesPerK + 63) / 64 * 64;
}

template <class C>
size_t tile_bytes(int k, const Grouping& grouping) {
  if constexpr (kIsGrouped<C>)
    return C::values_bytes(k) + (size_t(grouping.groups(k) * grouping.bytes()) + 63) / 64 * 64;
  else if constexpr (kIsQuantised<C>)
    return C::values_bytes(k) + C::scales_bytes(k);
  else
    return tile_values_bytes<C>(k);
}

}  // namespace gm::inline GM_ISA
