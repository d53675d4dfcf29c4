#include "sampling_select.h"

namespace gm::inline GM_ISA::sample {

bool group_maxima(const float* row, int n, std::vector<float>& maxima) {
  using namespace isa;
  maxima.resize(size_t((n + kGroup - 1) / kGroup));
  // 0 · x is NaN for NaN and infinities, and stays in the sum; −infinity is let through as a
  // large number. The order of operands keeps a NaN.
  const F lowest = set1(-std::numeric_limits<float>::max()), nothing = zero();
  F bad = zero();
  bool fine = true;
  for (int g = 0; g < n; g += kGroup) {
    const int end = std::min(n, g + kGroup);
    F top = set1(kLowest);
    int i = g;
    for (; i + kLanes <= end; i += kLanes) {
      F x = load(row + i);
      top = isa::max(top, x);
      bad = add(bad, mul(isa::max(lowest, x), nothing));
    }
    float max = max_of(top);
    for (; i < end; i++) {
      fine = fine && row[i] < std::numeric_limits<float>::infinity();
      max = std::max(max, row[i]);
    }
    maxima[size_t(g / kGroup)] = max;
  }
  return fine && sum(bad) == 0.0f;
}

void gather_above(const float* row, int n, const std::vector<float>& maxima, double bound,
                  std::vector<int32_t>& ids) {
  constexpr float kMost = std::numeric_limits<float>::max();
  ids.clear();
  if (bound > double(kMost)) return;
  // The smallest float that is not below the bound, and above −infinity.
  float low = static_cast<float>(std::max(bound, -double(kMost)));
  if (double(low) < bound) low = std::nextafter(low, std::numeric_limits<float>::infinity());
  ids.resize(size_t(n));
  int32_t* out = ids.data();
  for (int g = 0; g < n; g += kGroup) {
    if (!(maxima[size_t(g / kGroup)] >= low)) continue;
    const int end = std::min(n, g + kGroup);
    for (int i = g; i < end; i++) {
      *out = i;
      out += row[i] >= low;
    }
  }
  ids.resize(size_t(out - ids.data()));
}

void gather_top(const float* row, int n, const std::vector<float>& maxima, int k,
                std::vector<int32_t>& ids, std::vector<float>& values) {
  float bound = kLowest;
  if (size_t(k) <= maxima.size() && k > 0) {
    // The k-th largest of the groups' maxima: at least k logits are as large.
    values = maxima;
    std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<>());
    bound = values[size_t(k - 1)];
  }
  gather_above(row, n, maxima, double(bound), ids);
  if (ids.size() <= size_t(k)) return;
  values.resize(ids.size());
  for (size_t i = 0; i < ids.size(); i++) values[i] = row[ids[i]];
  std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<>());
  // Equal logits beyond the k-th stay in: ids break the tie, and that is the caller's affair.
  const float last = values[size_t(k - 1)];
  std::erase_if(ids, [row, last](int32_t id) { return row[id] < last; });
}

Ranking::Ranking(SamplingSpace& space, const std::vector<double>& keys, double width)
    : space_(space),
      keys_(keys),
      n_(int(space.ids.size())),
      classes_(n_ > kSmall && width > 0 && std::isfinite(kClasses / width) ? kClasses : 1),
      scale_(classes_ > 1 ? classes_ / width : 0) {
  space.counts.assign(size_t(classes_), 0);
  space.sums.assign(size_t(classes_), 0.0);
  if (classes_ == 1) {
    sort_class(0);
    space.counts[0] = n_;
    for (int32_t i : space.order) space.sums[0] += space.weights[size_t(i)];
    return;
  }
  space.classes.resize(size_t(n_));
  const double* key = keys.data();
  int32_t* of = space.classes.data();
  const double last = classes_ - 1;
  for (int i = 0; i < n_; i++) of[i] = int32_t(std::min(key[i] * scale_, last));
  for (int i = 0; i < n_; i++) {
    space.counts[size_t(of[i])]++;
    space.sums[size_t(of[i])] += space.weights[size_t(i)];
  }
}

bool Ranking::precedes(int32_t i, int32_t j) const {
  size_t a = size_t(i), b = size_t(j);
  if (keys_[a] != keys_[b]) return keys_[a] < keys_[b];
  if (space_.logits[a] != space_.logits[b]) return space_.logits[a] > space_.logits[b];
  return space_.ids[a] < space_.ids[b];
}

void Ranking::keep_until(int32_t last) {
  keep([this, last](int32_t i) { return !precedes(last, i); }, last, true);
}

void Ranking::keep_from(int32_t first) {
  keep([this, first](int32_t i) { return !precedes(i, first); }, first, false);
}

// `edge` decides within its class; classes before it are kept or dropped as a whole.
template <class Keep>
void Ranking::keep(Keep decide, int32_t edge, bool before) {
  auto& which = space_.marks;
  which.resize(size_t(n_));
  if (classes_ == 1) {
    for (int i = 0; i < n_; i++) which[size_t(i)] = decide(i);
  } else {
    const int32_t* of = space_.classes.data();
    const int32_t own = of[edge];
    for (int i = 0; i < n_; i++)
      which[size_t(i)] = of[i] == own ? decide(i) : (of[i] < own) == before;
  }
  size_t kept = 0;
  for (size_t i = 0; i < size_t(n_); i++) {
    space_.logits[kept] = space_.logits[i];
    space_.ids[kept] = space_.ids[i];
    kept += which[i];
  }
  space_.logits.resize(kept);
  space_.ids.resize(kept);
}

void Ranking::sort_class(int c) {
  if (sorted_ == c) return;
  sorted_ = c;
  auto& order = space_.order;
  order.clear();
  if (classes_ == 1) {
    order.resize(size_t(n_));
    std::iota(order.begin(), order.end(), 0);
  } else {
    const int32_t* of = space_.classes.data();
    for (int i = 0; i < n_; i++)
      if (of[i] == c) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [this](int32_t a, int32_t b) { return precedes(a, b); });
}

Ranking::Place Ranking::reaching(double sum, bool exceed) {
  auto reached = [&](double x) { return exceed ? x > sum : x >= sum; };
  int64_t before = 0;
  double total = 0;
  int c = 0, last = 0;
  for (int i = 0; i < classes_; i++)
    if (space_.counts[size_t(i)] > 0) last = i;
  // Rounding may leave the sum short: then it is the last candidate.
  auto passed = [&](int i) {
    return space_.counts[size_t(i)] == 0 || !reached(total + space_.sums[size_t(i)]);
  };
  for (; c < last && passed(c); c++) {
    before += space_.counts[size_t(c)];
    total += space_.sums[size_t(c)];
  }
  sort_class(c);
  Place place{-1, before, total};
  for (int32_t i : space_.order) {
    place.candidate = i;
    if (reached(place.sum_before + space_.weights[size_t(i)])) return place;
    place.sum_before += space_.weights[size_t(i)];
    place.before++;
  }
  if (place.candidate >= 0) {  // the last of its class
    place.sum_before -= space_.weights[size_t(place.candidate)];
    place.before--;
  }
  return place;
}

Ranking::Place Ranking::at(int64_t count) {
  Place place{-1, 0, 0};
  int c = 0;
  for (; c < classes_ - 1 && place.before + space_.counts[size_t(c)] <= count; c++) {
    place.before += space_.counts[size_t(c)];
    place.sum_before += space_.sums[size_t(c)];
  }
  sort_class(c);
  for (int32_t i : space_.order) {
    place.candidate = i;
    if (place.before == count) break;
    place.before++;
    place.sum_before += space_.weights[size_t(i)];
  }
  return place;
}

}  // namespace gm::inline GM_ISA::sample
