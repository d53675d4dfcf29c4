// Scales of codes in groups: what AWQ, GPTQ, MLX and their like store. One scale per row and group
// of columns, and perhaps a zero or a lowest value:
//
//   value = scale · (code − zero)   or   scale · code + low
//
// Without either, a code stands for code − half its range.
//
// How many blocks of 32 columns share a scale (all of a row, even) and what type it has are fields
// of the segment, read once per group: a kernel serves every grouping.
#pragma once
#include <cstdint>
#include <cstring>

#include "../isa/half.h"
#include "../isa/isa.h"

namespace gm::inline GM_ISA {

// What the codes are: whole numbers; floats of 8 bits (OCP 8-bit floating point, 2023) or of 4
// (e2m1), the latter in groups of 16 (NVFP4); or places in a table of 16 floats.
enum class Number : uint8_t { whole = 0, e4m3 = 1, e5m2 = 2, e2m1 = 3, table = 4 };
enum class ScaleType : uint8_t { f16 = 0, bf16 = 1, f32 = 2, e4m3 = 3 };
// What lies beside a group's scale: nothing, a zero of one byte, or a lowest value or a zero of
// the scale's type.
enum class Beside : uint8_t { nothing = 0, zeros = 1, lows = 2, float_zeros = 3 };

// Sixteen floats, and what kernels take for them: table[i] ≈ unit · (128 · high[i] + low[i]), to
// 2⁻¹⁵ of the largest. `high` is in the form that isa::dot_wide wants, `low` has 7 bits.
struct Codebook {
  float values[16];
  uint8_t high[16], low[16];
  float unit;
  explicit Codebook(const float* table);
};

struct Grouping {
  int blocks = 1;  // of 32 columns; the last group of a row may have fewer
  ScaleType type = ScaleType::f16;
  Beside beside = Beside::nothing;
  bool halves = false;  // a group is half a block
  float factor = 1;     // that belongs to every scale, or that every scale is divided by
  bool divide = false;  // the latter
  const Codebook* book = nullptr;

  int element() const { return type == ScaleType::f32 ? 4 : type == ScaleType::e4m3 ? 1 : 2; }
  // Bytes of a group of isa::kLanes rows: their scales, then what lies beside them.
  int bytes() const {
    int more = beside == Beside::nothing ? 0 : beside == Beside::zeros ? 1 : element();
    return isa::kLanes * (element() + more);
  }
  int groups(int k) const { return halves ? k / 16 : (k / 32 + blocks - 1) / blocks; }
  // The scale as the format has it.
  float scaled(float x) const { return divide ? x / factor : x * factor; }

  isa::F load(const uint8_t* p) const {
    if (type == ScaleType::f16) return isa::load_f16(reinterpret_cast<const uint16_t*>(p));
    if (type == ScaleType::bf16) return isa::load_bf16(reinterpret_cast<const uint16_t*>(p));
    if (type == ScaleType::e4m3) return isa::load_e4m3(p);
    return isa::load(reinterpret_cast<const float*>(p));
  }
  float get(const uint8_t* p, int row) const {
    uint16_t half;
    float x;
    if (type == ScaleType::f32) {
      std::memcpy(&x, p + 4 * row, 4);
      return x;
    }
    if (type == ScaleType::e4m3) return e4m3_to_float(p[row]);
    std::memcpy(&half, p + 2 * row, 2);
    return type == ScaleType::f16 ? half_to_float(half) : bf16_to_float(half);
  }
  // False if the type does not hold x exactly.
  bool put(uint8_t* p, int row, float x) const {
    if (type == ScaleType::f32) {
      std::memcpy(p + 4 * row, &x, 4);
    } else if (type == ScaleType::e4m3) {
      p[row] = float_to_e4m3(x);
    } else {
      uint16_t half = type == ScaleType::f16 ? float_to_half(x) : float_to_bf16(x);
      std::memcpy(p + 2 * row, &half, 2);
    }
    return get(p, row) == x;
  }
  // Where what lies beside the scales begins.
  const uint8_t* others(const uint8_t* p) const { return p + isa::kLanes * element(); }
};

// The stream as a kernel reads it. Codes come as code − Centre (128 where they have all 8 bits,
// for dot products of signed bytes).
template <bool Low, int Centre>
struct GroupScale {
  static constexpr int kSub = 32;
  static constexpr bool kLow = Low;
  struct Head {
    isa::F s, l;
    Head(const Grouping& g, const uint8_t* p) : s(g.load(p)), l(Low ? lowest(g, p, s) : s) {}
  };
  template <int>
  static isa::F scale(const Head& h, const uint8_t*) {
    return h.s;
  }
  template <int>
  static isa::F low(const Head& h, const uint8_t*) {
    return h.l;
  }

 private:
  static isa::F lowest(const Grouping& g, const uint8_t* p, isa::F s) {
    const isa::F centre = isa::set1(float(Centre));
    const uint8_t* others = g.others(p);
    if (g.beside == Beside::lows) return isa::fma(centre, s, g.load(others));
    isa::F zero = g.beside == Beside::zeros ? isa::load_u8(others) : g.load(others);
    return isa::mul(isa::sub(centre, zero), s);
  }
};

// Scales of half blocks, in one byte each, and one factor for all. Codes come doubled.
struct HalfBlockScale {
  static constexpr int kSub = 16;
  static constexpr bool kLow = false;
  struct Head {
    isa::F factor;
    explicit Head(const Grouping& g)
        : factor(isa::set1(0.5f * (g.divide ? 1.0f / g.factor : g.factor))) {}
  };
  template <int Half>
  static isa::F scale(const Head& h, const uint8_t* p) {
    return isa::mul(isa::load_e4m3(p + Half * isa::kLanes), h.factor);
  }
};

}  // namespace gm::inline GM_ISA
