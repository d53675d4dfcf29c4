// Value planes: how the codes of 32 consecutive k of a tile (kLanes rows) are stored, and how a
// kernel reads them: vec<J>() gives the codes of k = 4J … 4J + 3 of every row, row by row, as a
// vector of kLanes groups of 4 bytes.
//
// kBits counts stored bits per weight. `wide` codes need all 8 bits and are stored in the form
// that isa::dot_wide wants (plus kWideBias). Narrow codes are unsigned and stay below 64; a
// code stands for code - kOffset.
#pragma once
#include <cstdint>
#include <cstring>

#include "../isa/isa.h"

namespace gm::inline GM_ISA {

using isa::kLanes;
constexpr int kVec = kLanes * 4;  // bytes of one vector

struct Bits8 {
  static constexpr bool kWide = true;
  static constexpr int kOffset = isa::kWideBias;
  static constexpr int kBytes = 8 * kVec;
  template <int J>
  static isa::I8 vec(const uint8_t* p) {
    return isa::load_i8(p + J * kVec);
  }
  // c[j] holds the codes of k = 4j … 4j + 3, one a byte, lowest first; signed bytes here.
  static void put(uint8_t* p, int row, const uint32_t c[8]) {
    for (int j = 0; j < 8; j++) {
      uint32_t x = isa::kWideBias ? c[j] ^ 0x80808080u : c[j];
      std::memcpy(p + j * kVec + row * 4, &x, 4);
    }
  }
};

inline void put_nibbles(uint8_t* p, int row, const uint32_t c[8]) {
  for (int j = 0; j < 4; j++) {
    uint32_t x = (c[j] & 0x0f0f0f0fu) | (c[j + 4] & 0x0f0f0f0fu) << 4;
    std::memcpy(p + j * kVec + row * 4, &x, 4);
  }
}

template <int J>
inline isa::I8 nibbles(const uint8_t* p) {
  isa::I8 v = isa::load_i8(p + (J & 3) * kVec);
  if constexpr (J >= 4) v = isa::shr_i8<4>(v);
  return isa::and_i8(v, isa::set1_i8(0x0f));
}

// Moves the bits that start at bit From of every byte to bit To, keeping those of mask.
template <int From, int To>
inline isa::I8 move_bits(isa::I8 v, uint8_t mask) {
  if constexpr (From < To) v = isa::shl_i8<To - From>(v);
  if constexpr (From > To) v = isa::shr_i8<From - To>(v);
  return isa::and_i8(v, isa::set1_i8(mask));
}

template <int Offset>
struct Bits4 {
  static constexpr bool kWide = false;
  static constexpr int kOffset = Offset;
  static constexpr int kBytes = 4 * kVec;
  template <int J>
  static isa::I8 vec(const uint8_t* p) {
    return nibbles<J>(p);
  }
  static void put(uint8_t* p, int row, const uint32_t c[8]) { put_nibbles(p, row, c); }
};

// 4-bit codes that name one of 16 signed values.
template <class Table>
struct Table4 {
  static constexpr bool kWide = true;
  static constexpr int kOffset = isa::kWideBias;
  static constexpr int kBytes = 4 * kVec;
  template <int J>
  static isa::I8 vec(const uint8_t* p) {
    alignas(16) static constexpr auto kTable = make();
    return isa::lookup(isa::load_table(kTable.v), nibbles<J>(p));
  }
  static void put(uint8_t* p, int row, const uint32_t c[8]) { put_nibbles(p, row, c); }

 private:
  struct Bytes {
    uint8_t v[16];
  };
  static constexpr Bytes make() {
    Bytes b{};
    for (int i = 0; i < 16; i++) b.v[i] = uint8_t(Table::kValues[i] + isa::kWideBias);
    return b;
  }
};

// A nibble plane and a plane of fifth bits: bit j of a byte belongs to k group j.
template <int Offset>
struct Bits5 {
  static constexpr bool kWide = false;
  static constexpr int kOffset = Offset;
  static constexpr int kBytes = 5 * kVec;
  template <int J>
  static isa::I8 vec(const uint8_t* p) {
    return isa::or_i8(nibbles<J>(p), move_bits<J, 4>(isa::load_i8(p + 4 * kVec), 0x10));
  }
  static void put(uint8_t* p, int row, const uint32_t c[8]) {
    put_nibbles(p, row, c);
    uint32_t h = 0;
    for (int j = 0; j < 8; j++) h |= (c[j] >> 4 & 0x01010101u) << j;
    std::memcpy(p + 4 * kVec + row * 4, &h, 4);
  }
};

// Two planes of two bits: bits 2(j % 4) of plane j / 4 belong to k group j.
template <int Shift>
inline void put_pairs(uint8_t* p, int row, const uint32_t c[8]) {
  for (int half = 0; half < 2; half++) {
    uint32_t h = 0;
    for (int j = 0; j < 4; j++) h |= (c[half * 4 + j] >> Shift & 0x03030303u) << 2 * j;
    std::memcpy(p + half * kVec + row * 4, &h, 4);
  }
}

template <int Offset>
struct Bits6 {
  static constexpr bool kWide = false;
  static constexpr int kOffset = Offset;
  static constexpr int kBytes = 6 * kVec;
  template <int J>
  static isa::I8 vec(const uint8_t* p) {
    isa::I8 high = isa::load_i8(p + (4 + J / 4) * kVec);
    return isa::or_i8(nibbles<J>(p), move_bits<2 * (J % 4), 4>(high, 0x30));
  }
  static void put(uint8_t* p, int row, const uint32_t c[8]) {
    put_nibbles(p, row, c);
    put_pairs<4>(p + 4 * kVec, row, c);
  }
};

template <int Offset>
struct Bits3 {
  static constexpr bool kWide = false;
  static constexpr int kOffset = Offset;
  static constexpr int kBytes = 3 * kVec;
  template <int J>
  static isa::I8 vec(const uint8_t* p) {
    isa::I8 low = move_bits<2 * (J % 4), 0>(isa::load_i8(p + J / 4 * kVec), 0x03);
    return isa::or_i8(low, move_bits<J, 2>(isa::load_i8(p + 2 * kVec), 0x04));
  }
  static void put(uint8_t* p, int row, const uint32_t c[8]) {
    put_pairs<0>(p, row, c);
    uint32_t h = 0;
    for (int j = 0; j < 8; j++) h |= (c[j] >> 2 & 0x01010101u) << j;
    std::memcpy(p + 2 * kVec + row * 4, &h, 4);
  }
};

template <int Offset>
struct Bits2 {
  static constexpr bool kWide = false;
  static constexpr int kOffset = Offset;
  static constexpr int kBytes = 2 * kVec;
  template <int J>
  static isa::I8 vec(const uint8_t* p) {
    return move_bits<2 * (J % 4), 0>(isa::load_i8(p + J / 4 * kVec), 0x03);
  }
  static void put(uint8_t* p, int row, const uint32_t c[8]) { put_pairs<0>(p, row, c); }
};

}  // namespace gm::inline GM_ISA
