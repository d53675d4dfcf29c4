// Floats of 8 bits, as they are stored: S EEEE MMM (bias 7) and S EEEEE MM (bias 15). Moved to
// where halves and bfloat16 have exponent and mantissa, they are such numbers times a power of two.
//
// The four codes of a row of a tile's vector lie in the order 0 2 1 3, so that the lower bytes of
// its two numbers of 16 bits are the codes 0 and 1, the upper bytes the codes 2 and 3.
#pragma once
#include <cstdint>
#include <cstring>

#include "../isa/isa.h"
#include "values.h"

namespace gm::inline GM_ISA {

// kPairs, kHalves: what the bfloat16 that `pairs` makes is too large by, and the half too small.
// kSmall: bfloat16 of codes whose exponent is 0. (Processors that multiply bfloat16 take its own
// subnormals for zero.)
struct E4m3 {
  static constexpr int kExponent = 4;
  static constexpr float kPairs = 0x1p8f, kHalves = 0x1p8f;
  static constexpr uint16_t kSmall[8] = {0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4020, 0x4040, 0x4060};
};
struct E5m2 {
  static constexpr int kExponent = 5;
  static constexpr float kPairs = 0x1p16f, kHalves = 1;
  static constexpr uint16_t kSmall[8] = {0, 0x3f80, 0x4000, 0x4040, 0, 0x3f80, 0x4000, 0x4040};
};

template <class Format>
struct Fp8 {
  static constexpr bool kWide = false;
  static constexpr int kBytes = 8 * kVec;  // of 32 codes of every row
  // A product of what the kernels take for the weights, times this, is one of the weights.
  static constexpr float kUnit = isa::kDotBf16 ? 1 / Format::kPairs : Format::kHalves;

  // Codes 4J and 4J + 1, or 4J + 2 and 4J + 3, as pairs of bfloat16: the exponent gets its
  // highest bit, which saves to add a bias.
  template <int J, bool Second>
  static isa::I8 pairs(const uint8_t* p) {
    alignas(16) static constexpr auto kTable = small();
    constexpr int kBits = Format::kExponent;
    constexpr uint16_t kMoved = 0x7f << kBits, kField = (0x7f >> (7 - kBits)) << (7 - kBits);
    const isa::I8 both = isa::load_i8(p + J * kVec), top = isa::set1_u16(0x4000);
    const isa::I8 sign = isa::set1_u16(0x8000), table = isa::load_table_u16(kTable.v);
    if constexpr (Second) {
      const isa::I8 normal = isa::and_or(isa::shr_u16<8 - kBits>(both), isa::set1_u16(kMoved), top);
      return isa::and_or(both, sign,
                         isa::lookup_where_zero_u16(both, isa::set1_u16(uint16_t(kField << 8)),
                                                    table, isa::shr_u16<8>(both), normal));
    } else {
      const isa::I8 normal = isa::and_or(isa::shl_u16<kBits>(both), isa::set1_u16(kMoved), top);
      return isa::and_or(
          isa::shl_u16<8>(both), sign,
          isa::lookup_where_zero_u16(both, isa::set1_u16(kField), table, both, normal));
    }
  }
  // The same as pairs of halves.
  template <int J, bool Second>
  static isa::I8 halves(const uint8_t* p) {
    isa::I8 x = isa::load_i8(p + J * kVec);
    if constexpr (!Second) x = isa::shl_u16<8>(x);
    if constexpr (Format::kExponent == 5) return isa::and_i8(x, isa::set1_u16(0xff00));
    return isa::and_or(x, isa::set1_u16(0x8000),
                       isa::and_i8(isa::shr_u16<1>(x), isa::set1_u16(0x3f80)));
  }

  // c[j] holds the codes of k = 4j … 4j + 3, one a byte, lowest first.
  static void put(uint8_t* p, int row, const uint32_t c[8]) {
    for (int j = 0; j < 8; j++) {
      const uint32_t x = (c[j] & 0xff0000ffu) | (c[j] & 0xff00u) << 8 | (c[j] >> 8 & 0xff00u);
      std::memcpy(p + j * kVec + row * 4, &x, 4);
    }
  }
  // What code i of a row of the 32 at p stands for.
  static float value(const uint8_t* p, int row, int i) {
    const int place = i % 4 == 1 ? 2 : i % 4 == 2 ? 1 : i % 4;
    const unsigned code = p[i / 4 * kVec + row * 4 + place];
    const unsigned magnitude = (code & 0x7f) << (Format::kExponent == 4 ? 7 : 8);  // a half's
    return half_to_float(uint16_t((code & 0x80) << 8 | magnitude)) * Format::kHalves;
  }

 private:
  struct Words {
    uint16_t v[8];
  };
  static constexpr Words small() {
    Words words{};
    for (int i = 0; i < 8; i++) words.v[i] = Format::kSmall[i];
    return words;
  }
};

}  // namespace gm::inline GM_ISA
