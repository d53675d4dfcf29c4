// Scale streams: what turns the codes of a tile into values. A unit is kUnit blocks of 32 k
// with one header; inside a block there is a scale (and perhaps a minimum) per kSub weights.
//
//   value = scale · (code − offset) + low
//
// `scale` and `low` come as vectors of kLanes rows. Bytes stay as compact as the file has them.
#pragma once
#include <cstdint>
#include <cstring>

#include "../isa/isa.h"
#include "values.h"

namespace gm::inline GM_ISA {

// What a packer knows of a unit of one row: header values and, per sub-block, small integers.
struct UnitScales {
  uint16_t d = 0, low = 0;  // half-precision bits
  uint8_t e = 0;            // E8M0
  uint8_t sc[16] = {};      // per sub-block (signed where the stream says so)
  uint8_t mn[16] = {};
};

// One half per block.
struct HalfScale {
  static constexpr int kUnit = 1, kSub = 32;
  static constexpr bool kLow = false;
  static constexpr int kHead = 0, kBlock = 2 * kLanes;
  struct Head {
    explicit Head(const uint8_t*) {}
  };
  template <int>
  static isa::F scale(const Head&, const uint8_t* p) {
    return isa::load_f16(reinterpret_cast<const uint16_t*>(p));
  }
  static void put_head(uint8_t*, int, const UnitScales&) {}
  static void put_block(uint8_t* p, int row, int, const UnitScales& u) {
    std::memcpy(p + 2 * row, &u.d, 2);
  }
};

// One half for the scale and one for the lowest value, per block.
struct HalfScaleLow {
  static constexpr int kUnit = 1, kSub = 32;
  static constexpr bool kLow = true;
  static constexpr int kHead = 0, kBlock = 4 * kLanes;
  struct Head {
    explicit Head(const uint8_t*) {}
  };
  template <int>
  static isa::F scale(const Head&, const uint8_t* p) {
    return isa::load_f16(reinterpret_cast<const uint16_t*>(p));
  }
  template <int>
  static isa::F low(const Head&, const uint8_t* p) {
    return isa::load_f16(reinterpret_cast<const uint16_t*>(p + 2 * kLanes));
  }
  static void put_head(uint8_t*, int, const UnitScales&) {}
  static void put_block(uint8_t* p, int row, int, const UnitScales& u) {
    std::memcpy(p + 2 * row, &u.d, 2);
    std::memcpy(p + 2 * kLanes + 2 * row, &u.low, 2);
  }
};

// A power of two per block, halved: the 4-bit float table is stored doubled.
struct PowerScale {
  static constexpr int kUnit = 1, kSub = 32;
  static constexpr bool kLow = false;
  static constexpr int kHead = 0, kBlock = kLanes;
  struct Head {
    explicit Head(const uint8_t*) {}
  };
  template <int>
  static isa::F scale(const Head&, const uint8_t* p) {
    return isa::mul(isa::load_e8m0(p), isa::set1(0.5f));
  }
  static void put_head(uint8_t*, int, const UnitScales&) {}
  static void put_block(uint8_t* p, int row, int, const UnitScales& u) { p[row] = u.e; }
};

// Super-block of 256: two halves; per 32 a 6-bit scale and a 6-bit minimum, widened to bytes.
struct SuperScaleLow {
  static constexpr int kUnit = 8, kSub = 32;
  static constexpr bool kLow = true;
  static constexpr int kHead = 4 * kLanes, kBlock = 2 * kLanes;
  struct Head {
    isa::F d, low;
    explicit Head(const uint8_t* p)
        : d(isa::load_f16(reinterpret_cast<const uint16_t*>(p))),
          low(isa::load_f16(reinterpret_cast<const uint16_t*>(p + 2 * kLanes))) {}
  };
  template <int>
  static isa::F scale(const Head& h, const uint8_t* p) {
    return isa::mul(h.d, isa::load_u8(p));
  }
  template <int>
  static isa::F low(const Head& h, const uint8_t* p) {
    return isa::mul(h.low, isa::load_u8(p + kLanes));
  }
  static void put_head(uint8_t* p, int row, const UnitScales& u) {
    std::memcpy(p + 2 * row, &u.d, 2);
    uint16_t low = u.low ^ 0x8000;  // stored negated: minimums are subtracted
    std::memcpy(p + 2 * kLanes + 2 * row, &low, 2);
  }
  static void put_block(uint8_t* p, int row, int block, const UnitScales& u) {
    p[row] = u.sc[block];
    p[kLanes + row] = u.mn[block];
  }
};

// Super-block of 256: one half; per 16 a signed byte.
struct SuperScale16 {
  static constexpr int kUnit = 8, kSub = 16;
  static constexpr bool kLow = false;
  static constexpr int kHead = 2 * kLanes, kBlock = 2 * kLanes;
  struct Head {
    isa::F d;
    explicit Head(const uint8_t* p) : d(isa::load_f16(reinterpret_cast<const uint16_t*>(p))) {}
  };
  template <int Half>
  static isa::F scale(const Head& h, const uint8_t* p) {
    return isa::mul(h.d, isa::load_s8(reinterpret_cast<const int8_t*>(p + Half * kLanes)));
  }
  static void put_head(uint8_t* p, int row, const UnitScales& u) {
    std::memcpy(p + 2 * row, &u.d, 2);
  }
  static void put_block(uint8_t* p, int row, int block, const UnitScales& u) {
    p[row] = u.sc[2 * block];
    p[kLanes + row] = u.sc[2 * block + 1];
  }
};

// Super-block of 256: two halves; per 16 a byte of scale and a byte of minimum.
struct SuperScaleLow16 {
  static constexpr int kUnit = 8, kSub = 16;
  static constexpr bool kLow = true;
  static constexpr int kHead = 4 * kLanes, kBlock = 4 * kLanes;
  using Head = SuperScaleLow::Head;
  template <int Half>
  static isa::F scale(const Head& h, const uint8_t* p) {
    return isa::mul(h.d, isa::load_u8(p + Half * kLanes));
  }
  template <int Half>
  static isa::F low(const Head& h, const uint8_t* p) {
    return isa::mul(h.low, isa::load_u8(p + (2 + Half) * kLanes));
  }
  static void put_head(uint8_t* p, int row, const UnitScales& u) {
    SuperScaleLow::put_head(p, row, u);
  }
  static void put_block(uint8_t* p, int row, int block, const UnitScales& u) {
    for (int half = 0; half < 2; half++) {
      p[half * kLanes + row] = u.sc[2 * block + half];
      p[(2 + half) * kLanes + row] = u.mn[2 * block + half];
    }
  }
};

// Super-block of 256: one half; per 32 a signed byte.
struct SuperScale {
  static constexpr int kUnit = 8, kSub = 32;
  static constexpr bool kLow = false;
  static constexpr int kHead = 2 * kLanes, kBlock = kLanes;
  using Head = SuperScale16::Head;
  template <int>
  static isa::F scale(const Head& h, const uint8_t* p) {
    return isa::mul(h.d, isa::load_s8(reinterpret_cast<const int8_t*>(p)));
  }
  static void put_head(uint8_t* p, int row, const UnitScales& u) {
    std::memcpy(p + 2 * row, &u.d, 2);
  }
  static void put_block(uint8_t* p, int row, int block, const UnitScales& u) {
    p[row] = u.sc[block];
  }
};

}  // namespace gm::inline GM_ISA
