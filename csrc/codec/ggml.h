// How ggml's blocks lie in a GGUF file: read one unit of one row into codes and scales.
//
// `codes` gets 8 words per block of 32, four codes a word in order of k, each code a byte.
// docs/encodings.md has the layouts in prose; quant/ has them in numpy.
#pragma once
#include <cstdint>
#include <cstring>

#include "codec.h"

namespace gm::inline GM_ISA {

inline uint32_t word(const uint8_t* p) {
  uint32_t x;
  std::memcpy(&x, p, 4);
  return x;
}
inline uint16_t half_bits(const uint8_t* p) {
  uint16_t x;
  std::memcpy(&x, p, 2);
  return x;
}

// 16 bytes of nibbles: the low ones are k = 0 … 15, the high ones k = 16 … 31.
inline void split_nibbles(const uint8_t* q, uint32_t codes[8]) {
  for (int j = 0; j < 4; j++) {
    codes[j] = word(q + 4 * j) & 0x0f0f0f0fu;
    codes[j + 4] = word(q + 4 * j) >> 4 & 0x0f0f0f0fu;
  }
}

// Spreads 4 bits to bit 4 of 4 bytes.
inline uint32_t fifth_bits(uint32_t bits) {
  return (bits & 1) << 4 | (bits & 2) << 11 | (bits & 4) << 18 | (bits & 8) << 25;
}

inline void add_fifth_bits(uint32_t high, uint32_t codes[8]) {
  for (int j = 0; j < 8; j++) codes[j] |= fifth_bits(high >> 4 * j & 15);
}

template <class C>
struct Ggml;

template <>
struct Ggml<Q8_0> {
  static constexpr size_t kBytes = 34;
  static void read(const uint8_t* p, uint32_t* codes, UnitScales& u) {
    u.d = half_bits(p);
    for (int j = 0; j < 8; j++) codes[j] = word(p + 2 + 4 * j);
  }
};

template <>
struct Ggml<Q4_0> {
  static constexpr size_t kBytes = 18;
  static void read(const uint8_t* p, uint32_t* codes, UnitScales& u) {
    u.d = half_bits(p);
    split_nibbles(p + 2, codes);
  }
};

template <>
struct Ggml<Iq4Nl> : Ggml<Q4_0> {};

template <>
struct Ggml<Mxfp4> {
  static constexpr size_t kBytes = 17;
  static void read(const uint8_t* p, uint32_t* codes, UnitScales& u) {
    u.e = p[0];
    split_nibbles(p + 1, codes);
  }
};

template <>
struct Ggml<Q4_1> {
  static constexpr size_t kBytes = 20;
  static void read(const uint8_t* p, uint32_t* codes, UnitScales& u) {
    u.d = half_bits(p);
    u.low = half_bits(p + 2);
    split_nibbles(p + 4, codes);
  }
};

template <>
struct Ggml<Q5_0> {
  static constexpr size_t kBytes = 22;
  static void read(const uint8_t* p, uint32_t* codes, UnitScales& u) {
    u.d = half_bits(p);
    split_nibbles(p + 6, codes);
    add_fifth_bits(word(p + 2), codes);
  }
};

template <>
struct Ggml<Q5_1> {
  static constexpr size_t kBytes = 24;
  static void read(const uint8_t* p, uint32_t* codes, UnitScales& u) {
    u.d = half_bits(p);
    u.low = half_bits(p + 2);
    split_nibbles(p + 8, codes);
    add_fifth_bits(word(p + 4), codes);
  }
};

template <>
struct Ggml<Q2_K> {
  static constexpr size_t kBytes = 84;
  static void read(const uint8_t* p, uint32_t* codes, UnitScales& u) {
    for (int i = 0; i < 16; i++) {
      u.sc[i] = p[i] & 15;
      u.mn[i] = p[i] >> 4;
    }
    u.d = half_bits(p + 80);
    u.low = half_bits(p + 82);
    for (int b = 0; b < 8; b++)
      for (int j = 0; j < 8; j++)
        codes[8 * b + j] = word(p + 16 + 32 * (b / 4) + 4 * j) >> 2 * (b % 4) & 0x03030303u;
  }
};

template <>
struct Ggml<Q3_K> {
  static constexpr size_t kBytes = 110;
  static void read(const uint8_t* p, uint32_t* codes, UnitScales& u) {
    const uint8_t *high = p, *q = p + 32, *s = p + 96;
    u.d = half_bits(p + 108);
    for (int i = 0; i < 16; i++) {
      int low4 = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
      int high2 = s[8 + i % 4] >> 2 * (i / 4) & 3;
      u.sc[i] = uint8_t((low4 | high2 << 4) - 32);
    }
    for (int b = 0; b < 8; b++)
      for (int j = 0; j < 8; j++) {
        uint32_t low = word(q + 32 * (b / 4) + 4 * j) >> 2 * (b % 4) & 0x03030303u;
        codes[8 * b + j] = low | (word(high + 4 * j) >> b & 0x01010101u) << 2;
      }
  }
};

// The 12 bytes that hold eight 6-bit scales and eight 6-bit minimums.
inline void six_bit_scales(const uint8_t* s, UnitScales& u) {
  for (int i = 0; i < 4; i++) {
    u.sc[i] = s[i] & 63;
    u.mn[i] = s[i + 4] & 63;
    u.sc[i + 4] = uint8_t((s[i + 8] & 15) | (s[i] >> 6) << 4);
    u.mn[i + 4] = uint8_t(s[i + 8] >> 4 | (s[i + 4] >> 6) << 4);
  }
}

inline uint32_t super_nibbles(const uint8_t* q, int b, int j) {
  return word(q + 32 * (b / 2) + 4 * j) >> 4 * (b % 2) & 0x0f0f0f0fu;
}

template <>
struct Ggml<Q4_K> {
  static constexpr size_t kBytes = 144;
  static void read(const uint8_t* p, uint32_t* codes, UnitScales& u) {
    u.d = half_bits(p);
    u.low = half_bits(p + 2);
    six_bit_scales(p + 4, u);
    for (int b = 0; b < 8; b++)
      for (int j = 0; j < 8; j++) codes[8 * b + j] = super_nibbles(p + 16, b, j);
  }
};

template <>
struct Ggml<Q5_K> {
  static constexpr size_t kBytes = 176;
  static void read(const uint8_t* p, uint32_t* codes, UnitScales& u) {
    u.d = half_bits(p);
    u.low = half_bits(p + 2);
    six_bit_scales(p + 4, u);
    for (int b = 0; b < 8; b++)
      for (int j = 0; j < 8; j++)
        codes[8 * b + j] = super_nibbles(p + 48, b, j) | (word(p + 16 + 4 * j) >> b & 0x01010101u)
                                                             << 4;
  }
};

template <>
struct Ggml<Q6_K> {
  static constexpr size_t kBytes = 210;
  static void read(const uint8_t* p, uint32_t* codes, UnitScales& u) {
    const uint8_t *low = p, *high = p + 128;
    std::memcpy(u.sc, p + 192, 16);
    u.d = half_bits(p + 208);
    for (int b = 0; b < 8; b++)
      for (int j = 0; j < 8; j++) {
        const uint8_t* q = low + 64 * (b / 4) + 32 * (b % 2) + 4 * j;
        uint32_t nibble = word(q) >> 4 * (b % 4 / 2) & 0x0f0f0f0fu;
        uint32_t top = word(high + 32 * (b / 4) + 4 * j) >> 2 * (b % 4) & 0x03030303u;
        codes[8 * b + j] = nibble | top << 4;
      }
  }
};

template <>
struct Ggml<Iq4Xs> {
  static constexpr size_t kBytes = 136;
  static void read(const uint8_t* p, uint32_t* codes, UnitScales& u) {
    u.d = half_bits(p);
    uint16_t high = half_bits(p + 2);
    for (int b = 0; b < 8; b++) {
      int low4 = p[4 + b / 2] >> 4 * (b % 2) & 15;
      u.sc[b] = uint8_t((low4 | (high >> 2 * b & 3) << 4) - 32);
      split_nibbles(p + 8 + 16 * b, codes + 8 * b);
    }
  }
};

}  // namespace gm::inline GM_ISA
