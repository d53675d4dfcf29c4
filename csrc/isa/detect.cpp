#include "detect.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace gm {
namespace {

constexpr bool all(uint64_t have, uint64_t wanted) { return (have & wanted) == wanted; }
[[maybe_unused]] constexpr uint64_t bit(int n) { return uint64_t{1} << n; }

#if defined(__x86_64__)

// Register state that the operating system saves (XCR0). A processor may have AVX-512 while
// the system, or a virtual machine, does not keep its registers.
uint64_t saved_state() {
  uint32_t lo, hi;
  asm volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return uint64_t{hi} << 32 | lo;
}

// Intel SDM volume 2, CPUID; volume 1, chapters 13 to 15.
void add_levels(std::vector<std::string>& levels) {
  uint32_t a, b, c, d;
  if (!__get_cpuid_count(1, 0, &a, &b, &c, &d)) return;
  constexpr uint64_t kFma = bit(12), kOsxsave = bit(27), kAvx = bit(28), kF16c = bit(29);
  if (!all(c, kFma | kOsxsave | kAvx | kF16c)) return;
  constexpr uint64_t kSseState = bit(1), kAvxState = bit(2);
  constexpr uint64_t kAvx512State = bit(5) | bit(6) | bit(7);
  uint64_t state = saved_state();
  if (!all(state, kSseState | kAvxState)) return;

  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
  constexpr uint64_t kAvx2 = bit(5);
  if (!all(b, kAvx2)) return;
  constexpr uint64_t kF = bit(16), kDq = bit(17), kBw = bit(30), kVl = bit(31), kVnni = bit(11);
  bool avx512 = all(b, kF | kDq | kBw | kVl) && all(c, kVnni) && all(state, kAvx512State);
  // Leaf 7 says in eax how many subleaves it has; bfloat16 is in the first.
  bool bf16 = a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && all(a, bit(5));
  if (avx512 && bf16) levels.emplace_back("avx512");
  levels.emplace_back("avx2");
}

#elif defined(__aarch64__) && defined(__linux__)

// Linux, Documentation/arch/arm64/elf_hwcaps.rst; the numbers are the kernel's interface and
// older headers lack the newer names.
void add_levels(std::vector<std::string>& levels) {
  uint64_t cap = getauxval(AT_HWCAP), cap2 = getauxval(AT_HWCAP2);
  // armv8.2 code may also use what v8.1 made mandatory: CRC32, LSE atomics, rounding multiply.
  constexpr uint64_t kCrc32 = bit(7), kAtomics = bit(8), kRdm = bit(12), kDotprod = bit(20);
  constexpr uint64_t kI8mm = bit(13), kBf16 = bit(14);
  bool dotprod = all(cap, kCrc32 | kAtomics | kRdm | kDotprod);
  if (dotprod && all(cap2, kI8mm | kBf16)) levels.emplace_back("i8mm");
  if (dotprod) levels.emplace_back("dotprod");
  levels.emplace_back("neon");
}

#elif defined(__aarch64__)

void add_levels(std::vector<std::string>& levels) { levels.emplace_back("neon"); }

#else

void add_levels(std::vector<std::string>&) {}

#endif

}  // namespace

std::vector<std::string> runnable_levels() {
  std::vector<std::string> levels;
  add_levels(levels);
  levels.emplace_back("scalar");
  return levels;
}

}  // namespace gm
