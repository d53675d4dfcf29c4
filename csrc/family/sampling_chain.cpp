#include "sampling_chain.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sampling_select.h"

namespace gm::inline GM_ISA::sample {

namespace {

constexpr double kCold = 1e-30;  // a temperature below this is 0
constexpr double kMostLogit = 1e300;

}  // namespace

double Candidates::largest() const {
  return *std::max_element(space_.logits.begin(), space_.logits.end());
}

double Candidates::weigh() {
  const double most = largest();
  space_.weights.resize(size());
  const double* l = space_.logits.data();
  double* w = space_.weights.data();
  for (size_t i = 0, n = size(); i < n; i++) w[i] = exp_minus(most - l[i]);
  return std::accumulate(space_.weights.begin(), space_.weights.end(), 0.0);
}

void Candidates::distances() {
  const double most = largest();
  space_.keys.resize(size());
  for (size_t i = 0; i < size(); i++) space_.keys[i] = most - space_.logits[i];
}

template <class Keep>
void Candidates::keep_if(Keep keep) {
  size_t kept = 0;
  for (size_t i = 0; i < size(); i++) {
    if (!keep(i)) continue;
    space_.ids[kept] = space_.ids[i];
    space_.logits[kept++] = space_.logits[i];
  }
  space_.ids.resize(kept);
  space_.logits.resize(kept);
}

void Candidates::keep_first(int64_t count) {
  if (count >= int64_t(size())) return;
  weigh();
  distances();
  Ranking ranking(space_, space_.keys, kReach);
  ranking.keep_until(ranking.at(std::max<int64_t>(count, 1) - 1).candidate);
}

void Candidates::top_k(int64_t k) {
  if (k > 0) keep_first(k);
}

void Candidates::typical(double share, int min_keep) {
  const double sum = weigh(), most = largest(), rest = std::log(sum);
  auto& keys = space_.keys;
  keys.resize(size());
  double entropy = 0;
  for (size_t i = 0; i < size(); i++) {
    keys[i] = (most - space_.logits[i]) + rest;
    const double p = space_.weights[i] / sum;
    if (p > 0) entropy += p * keys[i];
  }
  for (double& key : keys) key = std::fabs(key - entropy);
  Ranking ranking(space_, keys, kReach);
  Ranking::Place last = ranking.reaching(share * sum, false);
  const int64_t least = std::min<int64_t>(min_keep, int64_t(size()));
  if (last.before + 1 < least) last = ranking.at(least - 1);
  ranking.keep_until(last.candidate);
}

void Candidates::top_p(double share, double whole, int min_keep) {
  const double sum = weigh();
  distances();
  Ranking ranking(space_, space_.keys, kReach);
  Ranking::Place last = ranking.reaching(share * (whole > 0 ? whole : sum), false);
  const int64_t least = std::min<int64_t>(min_keep, int64_t(size()));
  if (last.before + 1 < least) last = ranking.at(least - 1);
  ranking.keep_until(last.candidate);
}

void Candidates::min_p(double share, int min_keep) {
  weigh();
  const double least = std::min(share, 1.0);
  const auto& w = space_.weights;
  const auto count = std::count_if(w.begin(), w.end(), [least](double x) { return x >= least; });
  if (count < min_keep)
    keep_first(min_keep);
  else
    keep_if([&](size_t i) { return w[i] >= least; });
}

void Candidates::replace(const std::vector<double>& logits) {
  shift_ = *std::max_element(logits.begin(), logits.end());
  for (size_t i = 0; i < size(); i++) space_.logits[i] = logits[i] - shift_;
}

void Candidates::penalise(const Chooser& chooser) {
  std::vector<double> logits(size());
  for (size_t i = 0; i < size(); i++)
    logits[i] = chooser.penalised(space_.ids[i], space_.logits[i] + shift_);
  replace(logits);
}

void Candidates::dry(const Chooser& chooser) {
  std::vector<double> logits(size());
  for (size_t i = 0; i < size(); i++) logits[i] = space_.logits[i] + shift_;
  for (auto [id, loss] : chooser.dry_losses()) {
    auto found = std::lower_bound(space_.ids.begin(), space_.ids.end(), id);
    if (found != space_.ids.end() && *found == id)
      logits[size_t(found - space_.ids.begin())] -= loss;
  }
  replace(logits);
}

void Candidates::temperature(double t, double range, double exponent) {
  if (range > 0) {
    if (size() <= 1) return;
    const double sum = weigh(), most = largest(), rest = std::log(sum);
    double entropy = 0;
    for (size_t i = 0; i < size(); i++)
      entropy += space_.weights[i] / sum * ((most - space_.logits[i]) + rest);
    const double share = std::clamp(entropy / std::log(double(size())), 0.0, 1.0);
    const double low = std::max(0.0, t - range);
    t = low + (t + range - low) * std::pow(share, exponent);
  }
  if (t < kCold) return keep_first(1);
  for (double& l : space_.logits) l = std::max(l / t, -kMostLogit);
  shift_ = std::clamp(shift_ / t, -kMostLogit, kMostLogit);
}

void Candidates::top_n_sigma(double n) {
  const auto& l = space_.logits;
  const double count = double(size());
  const double mean = std::accumulate(l.begin(), l.end(), 0.0) / count;
  double squares = 0;
  for (double x : l) squares += (x - mean) * (x - mean);
  const double bound = largest() - n * std::sqrt(squares / count);
  keep_if([&](size_t i) { return l[i] >= bound; });
}

void Candidates::xtc(double threshold, int min_keep) {
  const double sum = weigh();
  const auto& w = space_.weights;
  int64_t drop = -1;
  for (double x : w) drop += x > 0 && x / sum >= threshold;
  if (drop <= 0 || int64_t(size()) - drop < min_keep) return;
  distances();
  Ranking ranking(space_, space_.keys, kReach);
  ranking.keep_from(ranking.at(drop).candidate);
}

void Candidates::mirostat_1(double mu, int vocab) {
  const size_t n = size();
  if (n < 2) return;
  std::vector<double>& best = space_.keys;
  best = space_.logits;
  const size_t m = std::min<size_t>(100, n);
  std::partial_sort(best.begin(), best.begin() + ptrdiff_t(m), best.end(), std::greater<>());
  double products = 0, squares = 0;
  for (size_t i = 0; i + 1 < m; i++) {
    const double step = std::log(double(i + 2) / double(i + 1));
    products += step * (best[i] - best[i + 1]);
    squares += step * step;
  }
  const double s = products / squares;
  if (s == 0) return;
  const double excess = s - 1;
  const double k = std::pow(excess * std::exp2(mu) / (1 - std::pow(double(vocab), -excess)), 1 / s);
  keep_first(std::isnan(k) ? 1 : std::max<int64_t>(int64_t(std::min(k, 1e9)), 1));
}

void Candidates::mirostat_2(double mu) {
  const double sum = weigh();
  const auto& w = space_.weights;
  auto light = [&](size_t i) { return -std::log2(w[i] / sum) <= mu; };
  bool any = false;
  for (size_t i = 0; i < size() && !any; i++) any = light(i);
  if (!any) return keep_first(1);
  keep_if(light);
}

void Candidates::adaptive(double target) {
  const double sum = weigh();
  auto& before = space_.keys;
  before.resize(size());
  for (size_t i = 0; i < size(); i++) {
    before[i] = space_.weights[i] / sum;
    const double d = std::fabs(before[i] - target) / 0.3;
    space_.logits[i] = 5 - 10 * d * d / (1 + d);
  }
  adapted_ = true;
}

void Candidates::apply(Step step, const Chooser& chooser, int& xtcs) {
  const SamplingParams& p = chooser.params();
  switch (step) {
    case Step::penalties:
      return penalise(chooser);
    case Step::dry:
      return dry(chooser);
    case Step::top_n_sigma:
      return top_n_sigma(p.top_n_sigma);
    case Step::temperature:
      return temperature(p.temperature, p.mirostat ? 0 : p.dynatemp_range, p.dynatemp_exponent);
    case Step::top_k:
      return top_k(p.top_k);
    case Step::typical:
      return typical(p.typical_p, p.min_keep);
    case Step::top_p:
      return top_p(p.top_p, 0, p.min_keep);
    case Step::min_p:
      return min_p(p.min_p, p.min_keep);
    case Step::xtc:
      xtcs++;
      if (size() >= 2 && chooser.uniform(uint64_t(xtcs)) <= p.xtc_probability)
        xtc(p.xtc_threshold, p.min_keep);
      return;
    case Step::mirostat_1:
      return mirostat_1(chooser.mu(), chooser.vocab());
    case Step::mirostat_2:
      return mirostat_2(chooser.mu());
    case Step::adaptive:
      if (p.adaptive_target >= 0) adaptive(chooser.adaptive_target());
      return;
  }
}

size_t Candidates::draw(double u) {
  const double goal = u * weigh();
  double sum = 0;
  for (size_t i = 0; i < size(); i++)
    if ((sum += space_.weights[i]) > goal) return i;
  return size() - 1;
}

double Candidates::probability(size_t place) {
  const double sum = weigh();
  return space_.weights[place] / sum;
}

Choice Candidates::told(size_t place, int top) {
  const double most = largest(), rest = std::log(weigh());
  const auto& l = space_.logits;
  Choice choice{space_.ids[place], l[place] - most - rest, {}};
  auto& order = space_.order;
  order.resize(size());
  std::iota(order.begin(), order.end(), 0);
  const size_t many = std::min(size_t(std::max(top, 0)), size());
  std::partial_sort(order.begin(), order.begin() + ptrdiff_t(many), order.end(),
                    [&](int32_t a, int32_t b) {
                      const double x = l[size_t(a)], y = l[size_t(b)];
                      return x != y ? x > y : a < b;
                    });
  for (size_t i = 0; i < many; i++)
    choice.top.emplace_back(space_.ids[size_t(order[i])], l[size_t(order[i])] - most - rest);
  return choice;
}

}  // namespace gm::inline GM_ISA::sample
