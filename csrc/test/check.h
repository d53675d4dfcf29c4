// What the self-tests share: a random source, a count of failures, and one line per case.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "../isa/isa.h"

namespace test {

// xorshift64*: the same numbers on every machine, so that a failure can be repeated.
struct Random {
  uint64_t state;
  explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t next() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1du;
  }
  uint32_t bits() { return static_cast<uint32_t>(next() >> 32); }
  int below(int n) { return static_cast<int>((next() >> 33) % static_cast<uint64_t>(n)); }
  // Uniform in [low, high).
  float uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(bits() >> 8) * 0x1p-24f;
  }
  // Roughly normal with standard deviation 1, by a sum of uniforms.
  float normal() {
    float s = 0;
    for (int i = 0; i < 12; i++) s += uniform(0, 1);
    return s - 6;
  }
};

inline int failures = 0;
inline int shown = 0;
inline bool quick = false;  // --quick: fewer cases, for emulators

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
inline void expect(bool ok, const char* format, ...) {
  if (ok) return;
  failures++;
  if (shown++ >= 20) return;
  va_list args;
  va_start(args, format);
  std::printf("    failed: ");
  std::vprintf(format, args);
  std::printf("\n");
  va_end(args);
}

// Runs one case and prints its line.
template <class Fn>
void run(const char* name, Fn fn) {
  int before = failures;
  shown = 0;
  fn();
  std::printf("%s %s %s\n", failures == before ? "ok  " : "FAIL", GM_ISA_NAME, name);
  std::fflush(stdout);
}

inline void arguments(int argc, char** argv) {
  for (int i = 1; i < argc; i++)
    if (std::strcmp(argv[i], "--quick") == 0) quick = true;
}

inline int result() {
  std::printf("%s: %d failures\n", GM_ISA_NAME, failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace test
