// Finding the few that matter among a vocabulary of logits, without sorting it.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "sampling.h"

namespace gm::inline GM_ISA::sample {

// Candidates this far below the best weigh e^-50: all of a vocabulary together less than the
// rounding of a sum.
constexpr double kReach = 50;
constexpr float kLowest = -std::numeric_limits<float>::infinity();
// Logits that share one maximum: what selection skips at a time.
constexpr int kGroup = 256;
static_assert(kGroup % isa::kLanes == 0);

// e^-x for x >= 0, error below 2 ulp, in a form that compilers vectorise. Beyond 700 it stays
// at e^-700, which is nothing beside the weight 1 of the best.
inline double exp_minus(double x) {
  x = x < 700.0 ? x : 700.0;
  constexpr double kMagic = 0x1.8p52;  // adding it rounds to an integer in the low bits
  const double t = kMagic - x * 1.4426950408889634;
  const double n = t - kMagic;
  const double r = (-x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const uint64_t power = (std::bit_cast<uint64_t>(t) + 1023) << 52;
  return p * std::bit_cast<double>(power);
}

// Eight doubles that compilers keep in the widest registers there are: loops over doubles they
// cut to half of those.
typedef double Eight __attribute__((vector_size(64)));
typedef int64_t EightInts __attribute__((vector_size(64)));
typedef float EightFloats __attribute__((vector_size(32)));

// exp_minus of eight in place; the same operations on each.
inline void exp_minus(Eight& x) {
  constexpr double kMagic = 0x1.8p52;
  x = x < 700.0 ? x : Eight{} + 700.0;
  const Eight t = kMagic - x * 1.4426950408889634;
  const Eight n = t - kMagic;
  const Eight r = (-x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33;
  Eight p = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  x = p * (Eight)(((EightInts)t + 1023) << 52);
}

// Σ e^-((largest - row[i]) · by) for n logits of a row.
inline double sum_weights(const float* row, int n, double largest, double by) {
  Eight sum = {};
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    EightFloats x;
    std::memcpy(&x, row + i, sizeof x);
    Eight w = (largest - __builtin_convertvector(x, Eight)) * by;
    exp_minus(w);
    sum += w;
  }
  double rest = 0;
  for (; i < n; i++) rest += exp_minus((largest - double(row[i])) * by);
  for (int j = 0; j < 8; j++) rest += sum[j];
  return rest;
}

// The maximum of each kGroup logits; false if one is NaN or +infinity.
bool group_maxima(const float* row, int n, std::vector<float>& maxima);

// Ids, rising, of at least the `k` largest logits (all that tie with the last included).
// Logits of -infinity are left out. `values` is used up.
void gather_top(const float* row, int n, const std::vector<float>& maxima, int k,
                std::vector<int32_t>& ids, std::vector<float>& values);

// Ids, rising, of all logits of `bound` or more, but no -infinity.
void gather_above(const float* row, int n, const std::vector<float>& maxima, double bound,
                  std::vector<int32_t>& ids);

// The candidates of space.logits, ids and weights (ids rising) in order of rising key, ties by
// logit, largest first, then by id. Only the stretch that is asked about is ever sorted: candidates
// are counted and their weights summed in classes of keys.
class Ranking {
 public:
  // A place in the order: the candidate there, how many come before it, their weights' sum.
  struct Place {
    int32_t candidate;
    int64_t before;
    double sum_before;
  };

  // Keys are >= 0; `width` is their range of interest. Uses space.counts, sums, classes and order.
  Ranking(SamplingSpace& space, const std::vector<double>& keys, double width);

  // The first candidate at which the sum, itself included, is `sum` or more (or exceeds it).
  Place reaching(double sum, bool exceed);
  // The candidate with `count` before it; count < n.
  Place at(int64_t count);
  // Drops all candidates after `last`, or before `first`, from logits and ids.
  void keep_until(int32_t last);
  void keep_from(int32_t first);

 private:
  static constexpr int kClasses = 4096, kSmall = 1024;
  bool precedes(int32_t a, int32_t b) const;
  template <class Keep>
  void keep(Keep decide, int32_t edge, bool before);
  void sort_class(int c);

  SamplingSpace& space_;
  const std::vector<double>& keys_;
  int n_, classes_;
  double scale_;
  int sorted_ = -1;  // the class that space_.order holds
};

}  // namespace gm::inline GM_ISA::sample
