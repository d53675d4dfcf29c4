// Every primitive of a level against plain C++ over corner and random inputs.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "check.h"

namespace {

using namespace gm;
using isa::kLanes;
using test::expect;
using test::Random;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kMost = 16;  // at least the lanes of any level
static_assert(kLanes <= kMost);

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
bool same(float a, float b) { return bits_of(a) == bits_of(b) || (a != a && b != b); }

const float kCorners[] = {
    0.0f,     -0.0f,    1.0f,       -1.0f,    0.5f,    1.5f,    2.5f,    -2.5f,      0.49999997f,
    65504.0f, 65519.9f, 65520.0f,   1e-8f,    6e-8f,   -3e-8f,  1e30f,   -1e30f,     1e-38f,
    1e-42f,   -1e-45f,  8388609.0f, 123.456f, -0.001f, 2048.5f, 2049.5f, 16777216.0f};

// Vectors of floats: all corners in all lanes, then random ones over many magnitudes.
template <class Fn>
void for_vectors(Fn fn) {
  Random random(7);
  const int corners = static_cast<int>(std::size(kCorners));
  const int count = test::quick ? 200 : 20000;
  for (int round = 0; round < corners + count; round++) {
    float x[kMost], y[kMost], z[kMost];
    for (int i = 0; i < kMost; i++) {
      if (round < corners) {
        x[i] = kCorners[(round + i) % corners];
        y[i] = kCorners[(round * 3 + i * 5 + 1) % corners];
        z[i] = kCorners[(round * 7 + i * 11 + 2) % corners];
      } else {
        x[i] = std::ldexp(random.normal(), random.below(40) - 20);
        y[i] = std::ldexp(random.normal(), random.below(40) - 20);
        z[i] = std::ldexp(random.normal(), random.below(40) - 20);
      }
    }
    fn(x, y, z);
  }
}

template <class Op, class Plain>
void check_lanes(const char* name, Op op, Plain plain) {
  for_vectors([&](const float* x, const float* y, const float* z) {
    float got[kMost];
    isa::store(got, op(isa::load(x), isa::load(y), isa::load(z)));
    for (int i = 0; i < kLanes; i++) {
      float want = plain(x[i], y[i], z[i]);
      expect(same(got[i], want), "%s(%g, %g, %g) = %.9g, not %.9g", name, double(x[i]),
             double(y[i]), double(z[i]), double(got[i]), double(want));
    }
  });
}

void arithmetic() {
  using isa::F;
  check_lanes(
      "add", [](F a, F b, F) { return isa::add(a, b); },
      [](float a, float b, float) { return a + b; });
  check_lanes(
      "sub", [](F a, F b, F) { return isa::sub(a, b); },
      [](float a, float b, float) { return a - b; });
  check_lanes(
      "mul", [](F a, F b, F) { return isa::mul(a, b); },
      [](float a, float b, float) { return a * b; });
  check_lanes(
      "div", [](F a, F b, F) { return isa::div(a, b); },
      [](float a, float b, float) { return a / b; });
  check_lanes(
      "abs", [](F a, F, F) { return isa::abs(a); },
      [](float a, float, float) { return std::fabs(a); });
  check_lanes(
      "set1", [](F, F, F) { return isa::set1(-3.25f); },
      [](float, float, float) { return -3.25f; });
  check_lanes(
      "zero", [](F, F, F) { return isa::zero(); }, [](float, float, float) { return 0.0f; });
  check_lanes(
      "round", [](F a, F, F) { return isa::round(a); },
      [](float a, float, float) { return std::nearbyintf(a); });
  // Zeros of either sign are equal to max and min.
  check_lanes(
      "max", [](F a, F b, F) { return isa::add(isa::max(a, b), isa::zero()); },
      [](float a, float b, float) { return (a > b ? a : b) + 0.0f; });
  check_lanes(
      "min", [](F a, F b, F) { return isa::add(isa::min(a, b), isa::zero()); },
      [](float a, float b, float) { return (a < b ? a : b) + 0.0f; });
}

void fused() {
  for_vectors([&](const float* x, const float* y, const float* z) {
    float got[kMost];
    isa::store(got, isa::fma(isa::load(x), isa::load(y), isa::load(z)));
    for (int i = 0; i < kLanes; i++) {
      float once = std::fmaf(x[i], y[i], z[i]);
      volatile float product = x[i] * y[i];  // volatile: not fused by the compiler
      float twice = product + z[i];
      bool ok = same(got[i], once) || (GM_ISA_NAME[0] == 's' && same(got[i], twice));
      expect(ok, "fma(%g, %g, %g) = %.9g, not %.9g", double(x[i]), double(y[i]), double(z[i]),
             double(got[i]), double(once));
    }
  });
}

void reductions() {
  for_vectors([&](const float* x, const float*, const float*) {
    double want = 0, size = 0;
    float most = x[0];
    for (int i = 0; i < kLanes; i++) {
      want += x[i];
      size += std::fabs(x[i]);
      most = std::max(most, x[i]);
    }
    float got = isa::sum(isa::load(x));
    expect(std::fabs(double(got) - want) <= size * 4e-7 + 1e-44, "sum = %.9g, not %.9g",
           double(got), want);
    expect(isa::max_of(isa::load(x)) == most, "max_of");
  });
}

void tails() {
  for (int n = 0; n <= kLanes; n++) {
    // Exactly n floats on the heap: reading or writing one more is caught by the sanitizer.
    std::unique_ptr<float[]> source(new float[static_cast<size_t>(n)]);
    for (int i = 0; i < n; i++) source[i] = 1.5f + float(i);
    float got[kMost];
    isa::store(got, isa::load_n(source.get(), n));
    for (int i = 0; i < kLanes; i++)
      expect(got[i] == (i < n ? 1.5f + float(i) : 0.0f), "load_n(%d)[%d] = %g", n, i,
             double(got[i]));
    std::unique_ptr<float[]> target(new float[static_cast<size_t>(n)]);
    float guarded[kMost + 2];
    std::fill(guarded, guarded + kMost + 2, -7.0f);
    isa::store_n(target.get(), isa::load(got), n);
    isa::store_n(guarded, isa::load(got), n);
    for (int i = 0; i < kMost + 2; i++)
      expect(guarded[i] == (i < n ? got[i] : -7.0f), "store_n(%d)[%d]", n, i);
    expect(std::equal(target.get(), target.get() + n, source.get()), "store_n(%d)", n);
  }
}

void powers() {
  for (int e = -150; e <= 128; e++) {
    for (float m : {1.0f, 1.2345678f, 0.7071068f, -1.4142135f}) {
      float got[kMost];
      isa::store(got, isa::ldexp(isa::set1(m), isa::set1(float(e))));
      // Two roundings below the normal range may differ by a unit of the smallest subnormal.
      float want = std::ldexp(m, e);
      bool ok = std::fabs(want) < 1.2e-38f ? std::fabs(double(got[0]) - double(want)) <= 1.5e-45
                                           : same(got[0], want);
      expect(ok, "ldexp(%g, %d) = %.9g, not %.9g", double(m), e, double(got[0]), double(want));
    }
  }
}

// ------------------------------------------------------------------ formats

void halves_decode() {
  for (int first = 0; first < 65536; first += kLanes) {
    uint16_t h[kMost];
    float f16[kMost], bf16[kMost];
    for (int i = 0; i < kLanes; i++) h[i] = static_cast<uint16_t>(first + i);
    isa::store(f16, isa::load_f16(h));
    isa::store(bf16, isa::load_bf16(h));
    for (int i = 0; i < kLanes; i++) {
      int e = h[i] >> 10 & 31, m = h[i] & 1023;
      double want = e == 0    ? std::ldexp(m, -24)
                    : e == 31 ? (m ? double(kNan) : double(kInf))
                              : std::ldexp(1024 + m, e - 25);
      float signed_want = static_cast<float>(h[i] & 0x8000 ? -want : want);
      expect(same(f16[i], signed_want), "load_f16(%04x) = %g", h[i], double(f16[i]));
      expect(same(half_to_float(h[i]), signed_want), "half_to_float(%04x)", h[i]);
      expect(same(bf16[i], std::bit_cast<float>(uint32_t(h[i]) << 16)), "load_bf16(%04x)", h[i]);
      if (want == want) expect(float_to_half(signed_want) == h[i], "float_to_half of %04x", h[i]);
    }
  }
}

// The nearest half by comparing distances, ties to the even code: no bit tricks.
uint16_t nearest_half(float x) {
  uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (x != x) return static_cast<uint16_t>(sign | 0x7e00);
  double a = std::fabs(double(x));
  if (a >= 65520) return static_cast<uint16_t>(sign | 0x7c00);
  int low = 0, high = 0x7c00;  // codes of positive halves grow with their values
  while (high - low > 1) {
    int middle = (low + high) / 2;
    double value =
        middle == 0x7c00 ? 65536.0 : double(half_to_float(static_cast<uint16_t>(middle)));
    (value <= a ? low : high) = middle;
  }
  double below = a - double(half_to_float(static_cast<uint16_t>(low)));
  double above =
      (high == 0x7c00 ? 65536.0 : double(half_to_float(static_cast<uint16_t>(high)))) - a;
  int code = below < above ? low : above < below ? high : low & 1 ? high : low;
  return static_cast<uint16_t>(sign | code);
}

void check_half(const float* x) {
  uint16_t got[kMost];
  isa::store_f16(got, isa::load(x));
  for (int i = 0; i < kLanes; i++) {
    uint16_t want = nearest_half(x[i]);
    bool nan = x[i] != x[i];
    auto is_nan = [](uint16_t h) { return (h & 0x7fff) > 0x7c00; };
    expect(nan ? is_nan(got[i]) : got[i] == want, "store_f16(%.9g) = %04x, not %04x", double(x[i]),
           got[i], want);
    uint16_t plain = float_to_half(x[i]);
    expect(nan ? is_nan(plain) : plain == want, "float_to_half(%.9g) = %04x, not %04x",
           double(x[i]), plain, want);
  }
}

void halves_encode() {
  // Each half, its midpoint to the next, and the floats beside them.
  const int step = test::quick ? 37 : 1;
  for (int code = 0; code < 0x7c00; code += step) {
    float a = half_to_float(static_cast<uint16_t>(code));
    float b = code + 1 == 0x7c00 ? 65536.0f : half_to_float(static_cast<uint16_t>(code + 1));
    float middle = (a + b) / 2;
    float x[kMost];
    const float some[] = {a, middle, std::nextafterf(middle, -kInf), std::nextafterf(middle, kInf)};
    for (int i = 0; i < kMost; i++) x[i] = i & 4 ? -some[i % 4] : some[i % 4];
    check_half(x);
    for (int i = 0; i < kMost; i++) x[i] = -x[i];
    check_half(x);
  }
  for_vectors([](const float* x, const float* y, const float*) {
    check_half(x);
    check_half(y);
  });
  const float odd[] = {kInf, -kInf, kNan, 1e38f};
  float x[kMost];
  for (int i = 0; i < kMost; i++) x[i] = odd[i % 4];
  check_half(x);
}

void bfloats_encode() {
  Random random(11);
  for (int round = 0; round < (test::quick ? 20000 : 2000000); round++) {
    uint32_t b = random.bits();
    if (round % 3 == 0) b = (b & 0xffff0000u) | 0x8000;  // exactly between two
    float x = std::bit_cast<float>(b);
    uint16_t got = float_to_bf16(x);
    if (x != x) {
      expect(bf16_to_float(got) != bf16_to_float(got), "float_to_bf16 of a NaN");
      continue;
    }
    uint32_t low = b >> 16, rest = b & 0xffff;
    uint32_t want = rest > 0x8000 || (rest == 0x8000 && (low & 1)) ? low + 1 : low;
    expect(got == want, "float_to_bf16(%08x) = %04x, not %04x", b, got, want);
  }
}

void bytes() {
  for (int first = 0; first < 256; first += kLanes) {
    // Exactly kLanes bytes, at an odd address.
    std::vector<uint8_t> holder(static_cast<size_t>(kLanes) + 1);
    uint8_t* b = holder.data() + 1;
    for (int i = 0; i < kLanes; i++) b[i] = static_cast<uint8_t>(first + i);
    float u[kMost], s[kMost], e[kMost];
    isa::store(u, isa::load_u8(b));
    isa::store(s, isa::load_s8(reinterpret_cast<const int8_t*>(b)));
    isa::store(e, isa::load_e8m0(b));
    for (int i = 0; i < kLanes; i++) {
      expect(u[i] == float(b[i]), "load_u8(%d)", b[i]);
      expect(s[i] == float(static_cast<int8_t>(b[i])), "load_s8(%d)", b[i]);
      if (b[i] == 255) continue;  // a NaN by the standard; readers refuse it
      expect(same(e[i], static_cast<float>(std::ldexp(1.0, b[i] - 127))), "load_e8m0(%d) = %g",
             b[i], double(e[i]));
    }
  }
}

// ---------------------------------------------------------------- integers

constexpr int kBytes = kLanes * 4;

// Stores 4 bytes of each lane as it lies in memory, since no primitive stores an I8.
void bytes_of(isa::I8 v, uint8_t* out) {
  static_assert(sizeof(isa::I8) == kBytes);
  std::memcpy(out, &v, kBytes);
}
void ints_of(isa::I32 v, int32_t* out) {
  static_assert(sizeof(isa::I32) == kLanes * 4);
  std::memcpy(out, &v, kLanes * 4);
}

template <int N>
void check_shifts(const uint8_t* a) {
  uint8_t right[kBytes], left[kBytes];
  auto mask = static_cast<uint8_t>(0xff >> N);
  bytes_of(isa::and_i8(isa::shr_i8<N>(isa::load_i8(a)), isa::set1_i8(mask)), right);
  bytes_of(isa::and_i8(isa::shl_i8<N>(isa::load_i8(a)), isa::set1_i8(uint8_t(0xff << N))), left);
  for (int i = 0; i < kBytes; i++) {
    expect(right[i] == a[i] >> N, "shr_i8<%d>(%d) = %d", N, a[i], right[i]);
    expect(left[i] == uint8_t(a[i] << N), "shl_i8<%d>(%d) = %d", N, a[i], left[i]);
  }
}

void byte_vectors() {
  Random random(3);
  for (int round = 0; round < (test::quick ? 50 : 5000); round++) {
    uint8_t a[kBytes], b[kBytes], table[16], codes[kBytes], got[kBytes];
    for (int i = 0; i < kBytes; i++) {
      a[i] = static_cast<uint8_t>(random.bits());
      b[i] = static_cast<uint8_t>(random.bits());
      codes[i] = static_cast<uint8_t>(random.below(16));
    }
    for (auto& t : table) t = static_cast<uint8_t>(random.bits());
    bytes_of(isa::and_i8(isa::load_i8(a), isa::load_i8(b)), got);
    for (int i = 0; i < kBytes; i++) expect(got[i] == (a[i] & b[i]), "and_i8");
    bytes_of(isa::or_i8(isa::load_i8(a), isa::load_i8(b)), got);
    for (int i = 0; i < kBytes; i++) expect(got[i] == (a[i] | b[i]), "or_i8");
    bytes_of(isa::lookup(isa::load_table(table), isa::load_i8(codes)), got);
    for (int i = 0; i < kBytes; i++)
      expect(got[i] == table[codes[i]], "lookup(%d) = %d, not %d", codes[i], got[i],
             table[codes[i]]);
    check_shifts<1>(a);
    check_shifts<2>(a);
    check_shifts<3>(a);
    check_shifts<4>(a);
    check_shifts<5>(a);
    check_shifts<6>(a);
    check_shifts<7>(a);
  }
}

template <int N>
void check_sar(const int32_t* v) {
  int32_t got[kMost];
  isa::I32 x;
  std::memcpy(&x, v, sizeof x);
  ints_of(isa::sar<N>(x), got);
  for (int i = 0; i < kLanes; i++) expect(got[i] == v[i] >> N, "sar<%d>(%d)", N, v[i]);
}

void int_vectors() {
  Random random(5);
  for (int round = 0; round < (test::quick ? 100 : 10000); round++) {
    int32_t v[kMost], got[kMost];
    float f[kMost], back[kMost];
    for (int i = 0; i < kMost; i++) {
      v[i] = static_cast<int32_t>(random.bits()) >> random.below(31);
      f[i] = float(random.below(2000) - 1000) / 4;  // with exact halves
    }
    isa::I32 x;
    std::memcpy(&x, v, sizeof x);
    isa::store(back, isa::to_f(x));
    for (int i = 0; i < kLanes; i++) expect(back[i] == static_cast<float>(v[i]), "to_f");
    ints_of(isa::to_i32(isa::load(f)), got);
    for (int i = 0; i < kLanes; i++)
      expect(got[i] == std::lrint(f[i]), "to_i32(%g) = %d", double(f[i]), got[i]);
    check_sar<1>(v);
    check_sar<8>(v);
    check_sar<31>(v);

    for (auto& i : v) i = random.below(256) - 128;
    std::memcpy(&x, v, sizeof x);
    int8_t low[kMost + 1];
    low[kLanes] = 99;
    isa::store_low8(low, x);
    for (int i = 0; i < kLanes; i++) expect(low[i] == v[i], "store_low8(%d) = %d", v[i], low[i]);
    expect(low[kLanes] == 99, "store_low8 writes past its lanes");

    uint8_t word[5];
    for (auto& w : word) w = static_cast<uint8_t>(random.bits());
    ints_of(isa::load1_i32(word + 1), got);
    int32_t want;
    std::memcpy(&want, word + 1, 4);
    for (int i = 0; i < kLanes; i++) expect(got[i] == want, "load1_i32");
    ints_of(isa::zero_i32(), got);
    for (int i = 0; i < kLanes; i++) expect(got[i] == 0, "zero_i32");
  }
}

// `pick` fills 4 weights (low … high) and 4 activations (-127 … 127).
template <bool Wide, class Pick>
void check_dot(Pick pick) {
  int8_t w[kBytes], a[4];
  pick(w, a);
  uint8_t stored[kBytes];
  constexpr int kBias = Wide ? isa::kWideBias : 0;
  for (int i = 0; i < kBytes; i++) stored[i] = static_cast<uint8_t>(w[i] + kBias);
  int32_t start[kMost], got[kMost];
  for (int i = 0; i < kMost; i++) start[i] = i * 100003 - 50000;
  isa::I32 acc;
  std::memcpy(&acc, start, sizeof acc);
  acc = Wide ? isa::dot_wide(acc, isa::load_i8(stored), a) : isa::dot(acc, isa::load_i8(stored), a);
  ints_of(acc, got);
  for (int r = 0; r < kLanes; r++) {
    int want = start[r];
    for (int k = 0; k < 4; k++) want += (w[r * 4 + k] + kBias) * a[k];
    expect(got[r] == want, "dot%s row %d = %d, not %d", Wide ? "_wide" : "", r, got[r], want);
  }
}

void dots() {
  Random random(9);
  const int wide[] = {-128, -127, -1, 0, 1, 127}, narrow[] = {0, 1, 63, 126, 127};
  const int activations[] = {-127, -126, -1, 0, 1, 127};
  for (int wv : wide)
    for (int av : activations)
      check_dot<true>([&](int8_t* w, int8_t* a) {
        std::memset(w, wv, kBytes);
        std::memset(a, av, 4);
      });
  for (int wv : narrow)
    for (int av : activations)
      check_dot<false>([&](int8_t* w, int8_t* a) {
        std::memset(w, wv, kBytes);
        std::memset(a, av, 4);
      });
  for (int round = 0; round < (test::quick ? 200 : 20000); round++) {
    auto any = [&](int low, int high) {
      return static_cast<int8_t>(low + random.below(high - low + 1));
    };
    bool extreme = round % 2;
    auto weight = [&](int low, int high) {
      return extreme ? static_cast<int8_t>(random.below(2) ? low : high) : any(low, high);
    };
    check_dot<true>([&](int8_t* w, int8_t* a) {
      for (int i = 0; i < kBytes; i++) w[i] = weight(-128, 127);
      for (int i = 0; i < 4; i++) a[i] = weight(-127, 127);
    });
    check_dot<false>([&](int8_t* w, int8_t* a) {
      for (int i = 0; i < kBytes; i++) w[i] = weight(0, 127);
      for (int i = 0; i < 4; i++) a[i] = weight(-127, 127);
    });
  }
}

void bfloat_pairs() {
  Random random(13);
  for (int round = 0; round < (test::quick ? 200 : 20000); round++) {
    uint16_t w[kLanes * 2], a[2];
    for (auto& x : w) x = float_to_bf16(std::ldexp(random.normal(), random.below(20) - 10));
    for (auto& x : a) x = float_to_bf16(random.normal());
    float start[kMost], even[kMost], odd[kMost], got[kMost];
    for (auto& x : start) x = random.normal();
    isa::store(even, isa::even_bf16(isa::load_i8(w)));
    isa::store(odd, isa::odd_bf16(isa::load_i8(w)));
    isa::store(got, isa::dot_bf16(isa::load(start), isa::load_i8(w), a));
    for (int r = 0; r < kLanes; r++) {
      expect(same(even[r], bf16_to_float(w[2 * r])), "even_bf16");
      expect(same(odd[r], bf16_to_float(w[2 * r + 1])), "odd_bf16");
      if (!isa::kDotBf16) continue;
      double p = double(even[r]) * double(bf16_to_float(a[0]));
      double q = double(odd[r]) * double(bf16_to_float(a[1]));
      double want = double(start[r]) + p + q;
      double size = std::fabs(double(start[r])) + std::fabs(p) + std::fabs(q);
      expect(std::fabs(double(got[r]) - want) <= size * 0x1p-22, "dot_bf16 = %.9g, not %.9g",
             double(got[r]), want);
    }
  }
}

// --------------------------------------------------------------- functions

float lane0(isa::F x) {
  float v[kMost];
  isa::store(v, x);
  for (int i = 1; i < kLanes; i++) expect(same(v[i], v[0]), "lanes differ");
  return v[0];
}

// Distance in units in the last place of the true value.
double ulps(float got, double want) {
  int e;
  std::frexp(want, &e);
  return std::fabs(double(got) - want) / std::ldexp(1.0, std::max(e - 24, -149));
}

// Calls fn for floats of [low, high], evenly by their bits, and for both ends.
template <class Fn>
void sweep(float low, float high, Fn fn) {
  const uint32_t step = test::quick ? 2000003 : 4099;
  fn(low);
  fn(high);
  if (low < 0)
    for (uint32_t b = 0x80000000u; b <= bits_of(low); b += step) fn(std::bit_cast<float>(b));
  if (high > 0)
    for (uint32_t b = 0; b <= bits_of(high); b += step) fn(std::bit_cast<float>(b));
}

void exponential() {
  expect(lane0(isa::exp(isa::zero())) == 1.0f, "exp(0) is not 1");
  expect(lane0(isa::exp(isa::set1(-0.0f))) == 1.0f, "exp(-0) is not 1");
  expect(lane0(isa::exp(isa::set1(-kInf))) == 0.0f, "exp(-inf) is not 0");
  expect(lane0(isa::exp(isa::set1(-1e9f))) == 0.0f, "exp(-1e9) is not 0");
  expect(lane0(isa::exp(isa::set1(1e9f))) > 3e38f, "exp(1e9) is small");
  float nan = lane0(isa::exp(isa::set1(kNan)));
  expect(nan != nan, "exp hides a NaN");
  double worst = 0;
  float at = 0, last = 0, last_x = -kInf;
  sweep(-87.0f, 88.0f, [&](float x) {
    double off = ulps(lane0(isa::exp(isa::set1(x))), std::exp(double(x)));
    if (off > worst) worst = off, at = x;
  });
  expect(worst <= 1.25, "exp is off by %g ulp at %.9g", worst, double(at));
  // Below the normal range: absolute error of two of the smallest numbers; never falling.
  for (float x = -106.0f; x < -86.5f; x += 0.01f) {
    float y = lane0(isa::exp(isa::set1(x)));
    double want = std::exp(double(x));
    expect(std::fabs(double(y) - want) <= 3e-45 + want * 2.4e-7, "exp(%g) = %g", double(x),
           double(y));
    expect(x < last_x || y >= last, "exp falls at %g", double(x));
    last = y, last_x = x;
  }
}

void hyperbolic() {
  double worst = 0, worst_sigmoid = 0;
  float at = 0, at_sigmoid = 0;
  sweep(-20.0f, 20.0f, [&](float x) {
    double want = std::tanh(double(x));
    float got = lane0(isa::tanh(isa::set1(x)));
    double off = want == 0 ? std::fabs(double(got)) : std::fabs(double(got) - want);
    if (want != 0) off /= std::max(std::fabs(want), 1.2e-38);
    if (off > worst) worst = off, at = x;
    double s = 1 / (1 + std::exp(-double(x)));
    off = std::fabs(double(lane0(isa::sigmoid(isa::set1(x)))) - s) / s;
    if (off > worst_sigmoid) worst_sigmoid = off, at_sigmoid = x;
  });
  expect(worst <= 1.5e-6, "tanh is off by %g relative at %.9g", worst, double(at));
  expect(worst_sigmoid <= 4e-7, "sigmoid is off by %g relative at %.9g", worst_sigmoid,
         double(at_sigmoid));
  for (float x : {30.0f, 1e3f, 1e6f, 1e20f, 3e38f, kInf}) {
    expect(std::fabs(double(lane0(isa::tanh(isa::set1(x)))) - 1) < 1e-6, "tanh(%g)", double(x));
    expect(std::fabs(double(lane0(isa::tanh(isa::set1(-x)))) + 1) < 1e-6, "tanh(-%g)", double(x));
    expect(std::fabs(double(lane0(isa::sigmoid(isa::set1(x)))) - 1) < 1e-6, "sigmoid");
    expect(std::fabs(double(lane0(isa::sigmoid(isa::set1(-x))))) < 1e-6, "sigmoid");
  }
  float nan = lane0(isa::tanh(isa::set1(kNan)));
  expect(nan != nan, "tanh hides a NaN");
}

}  // namespace

int main(int argc, char** argv) {
  test::arguments(argc, argv);
  test::run("add sub mul div abs round max min", arithmetic);
  test::run("fma", fused);
  test::run("sum max_of", reductions);
  test::run("load_n store_n", tails);
  test::run("ldexp", powers);
  test::run("f16 and bf16 to float, all 65536", halves_decode);
  test::run("float to f16", halves_encode);
  test::run("float to bf16", bfloats_encode);
  test::run("load_u8 load_s8 load_e8m0", bytes);
  test::run("byte vectors", byte_vectors);
  test::run("int vectors", int_vectors);
  test::run("dot dot_wide", dots);
  test::run("bf16 pairs", bfloat_pairs);
  test::run("exp", exponential);
  test::run("tanh sigmoid", hyperbolic);
  return test::result();
}
