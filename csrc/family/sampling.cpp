#include "sampling.h"

#include <stdexcept>
#include <string>

#include "sampling_select.h"

namespace gm::inline GM_ISA {

namespace {

using namespace sample;

constexpr double kForbid = -100;  // a bias of this or less forbids its token
// Candidates this many temperatures below the best weigh e^-50: all of a vocabulary together
// less than the rounding of a sum.
constexpr double kReach = 50;

// splitmix64's finaliser (Steele et al., OOPSLA 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The row as its chooser sees it: `row` with -infinity for what is not allowed and for the
// tokens whose logits differ from the model's, which are in space.changed (if allowed).
class Seen {
 public:
  Seen(const float* row, const Chooser& chooser, const int32_t* banned, size_t bans,
       const uint32_t* mask, SamplingSpace& space)
      : vocab_(chooser.vocab()), mask_(mask), space_(space) {
    decide_allowed(chooser, banned, bans);
    change(row, chooser);
    row_ = row;
    if (mask_ || !space.banned.empty() || !space.changed.empty()) blank(row);
  }
  const float* row() const { return row_; }
  bool allowed(int32_t id) const {
    return (!mask_ || (mask_[id / 32] >> (id % 32) & 1)) &&
           !std::binary_search(space_.banned.begin(), space_.banned.end(), id);
  }

 private:
  // Step 1 of the specification: what is out, unless that would leave nothing.
  void decide_allowed(const Chooser& chooser, const int32_t* banned, size_t bans) {
    auto& out = space_.banned;
    out = chooser.forbidden();
    for (size_t i = 0; i < bans; i++)
      if (banned[i] >= 0 && banned[i] < vocab_) out.push_back(banned[i]);
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    int masked = vocab_;
    if (mask_) {
      masked = 0;
      for (int w = 0; w < vocab_ / 32; w++) masked += std::popcount(mask_[w]);
      if (vocab_ % 32) masked += std::popcount(mask_[vocab_ / 32] << (32 - vocab_ % 32));
      if (masked == 0) mask_ = nullptr;
    }
    auto blocked = std::count_if(out.begin(), out.end(), [this](int32_t id) {
      return !mask_ || (mask_[id / 32] >> (id % 32) & 1);
    });
    if (masked == 0 || blocked == masked) out.clear();
  }

  // Steps 2 and 3: biases and penalties.
  void change(const float* row, const Chooser& chooser) {
    const SamplingParams& params = chooser.params();
    auto& changed = space_.changed;
    changed.clear();
    for (auto [id, bias] : chooser.biases()) {
      if (changed.empty() || changed.back().first != id) changed.emplace_back(id, row[id]);
      changed.back().second += bias;
    }
    const size_t biased = changed.size();
    for (auto [id, count] : chooser.counts()) {
      auto end = changed.begin() + ptrdiff_t(biased);
      auto found = std::lower_bound(changed.begin(), end, std::pair{id, -1e308},
                                    [](auto& a, auto& b) { return a.first < b.first; });
      if (found == end || found->first != id)
        found = changed.emplace(changed.end(), id, double(row[id]));
      double& logit = found->second;
      const double by = params.repetition_penalty;
      if (by != 1.0) logit = logit > 0 ? logit / by : logit * by;
      logit -= count * params.frequency_penalty + params.presence_penalty;
    }
    for (auto& entry : changed)  // no sum of biases may make a NaN later
      entry.second = std::isnan(entry.second) ? double(kLowest) : std::min(entry.second, 1e300);
  }

  void blank(const float* row) {
    auto& copy = space_.row;
    copy.assign(row, row + vocab_);
    for (int w = 0; mask_ && w * 32 < vocab_; w++) {
      if (mask_[w] == ~0u) continue;
      const int end = std::min(32, vocab_ - w * 32);
      for (int b = 0; b < end; b++)
        if (!(mask_[w] >> b & 1)) copy[size_t(w * 32 + b)] = kLowest;
    }
    for (int32_t id : space_.banned) copy[size_t(id)] = kLowest;
    auto& changed = space_.changed;
    for (auto& entry : changed) copy[size_t(entry.first)] = kLowest;
    std::erase_if(changed, [this](auto& entry) { return !allowed(entry.first); });
    group_maxima(copy.data(), vocab_, space_.maxima);
    row_ = copy.data();
  }

  const int vocab_;
  const uint32_t* mask_;
  SamplingSpace& space_;
  const float* row_;
};

struct Best {
  int32_t id;
  double logit;
};

// The first of the sorted candidates; id -1 if all are -infinity.
Best best_of(const float* row, int vocab, const SamplingSpace& space) {
  auto group = std::max_element(space.maxima.begin(), space.maxima.end());
  Best best{-1, double(kLowest)};
  if (*group > kLowest) {
    const float* first = row + (group - space.maxima.begin()) * kGroup;
    best = {int32_t(std::find(first, row + vocab, *group) - row), double(*group)};
  }
  for (auto [id, logit] : space.changed)
    if (logit > best.logit || (logit == best.logit && best.id >= 0 && id < best.id))
      best = {id, logit};
  return best;
}

// The candidates that can matter into space.ids, logits and weights; top_k is not yet exact.
void gather(const float* row, int vocab, const SamplingParams& params, double largest,
            SamplingSpace& space) {
  const double t = params.temperature;
  double bound = largest - kReach * t;
  const bool by_count = params.top_k > 0 && params.top_k < vocab;
  if (by_count) {
    bound = double(kLowest);
    gather_top(row, vocab, space.maxima, params.top_k, space.ids);
  } else {
    const bool only_min_p = params.typical_p >= 1 && params.top_p >= 1 && params.min_p > 0;
    if (only_min_p) bound = largest + t * (std::log(std::min(params.min_p, 1.0)) - 1e-6);
    gather_above(row, vocab, space.maxima, bound, space.ids);
  }
  auto& logits = space.logits;
  logits.resize(space.ids.size());
  for (size_t i = 0; i < logits.size(); i++) logits[i] = double(row[space.ids[i]]);
  for (auto [id, logit] : space.changed)
    if (logit >= bound && logit > double(kLowest)) {
      space.ids.push_back(id);
      logits.push_back(logit);
    }
  space.weights.resize(logits.size());
  const double* l = logits.data();
  double* w = space.weights.data();
  for (size_t i = 0, n = logits.size(); i < n; i++) w[i] = exp_minus((largest - l[i]) / t);
}

void distances(double largest, SamplingSpace& space) {
  space.keys.resize(space.logits.size());
  for (size_t i = 0; i < space.keys.size(); i++) space.keys[i] = largest - space.logits[i];
}

// Step 6b: the run of candidates whose surprise is nearest to the entropy.
void keep_typical(double largest, const SamplingParams& params, SamplingSpace& space) {
  const double sum = std::accumulate(space.weights.begin(), space.weights.end(), 0.0);
  double entropy = 0;
  auto& keys = space.keys;
  keys.resize(space.weights.size());
  for (size_t i = 0; i < keys.size(); i++) {
    double p = space.weights[i] / sum;
    keys[i] = (largest - space.logits[i]) / params.temperature + std::log(sum);
    if (p > 0) entropy += p * keys[i];
  }
  for (double& key : keys) key = std::fabs(key - entropy);
  Ranking ranking(space, keys, kReach);
  ranking.keep_until(ranking.reaching(params.typical_p * sum, false).candidate);
}

// Steps 5 to 7: temperature, truncation, draw. The best logit is finite.
int32_t draw(const float* row, const Chooser& chooser, double largest, SamplingSpace& space) {
  const SamplingParams& params = chooser.params();
  const double width = kReach * params.temperature;
  gather(row, chooser.vocab(), params, largest, space);
  distances(largest, space);
  if (params.top_k > 0 && size_t(params.top_k) < space.ids.size()) {
    Ranking ranking(space, space.keys, width);
    ranking.keep_until(ranking.at(params.top_k - 1).candidate);
    distances(largest, space);
  }
  if (params.typical_p < 1) {
    keep_typical(largest, params, space);
    // Without the best, weights are small but their ratios as good as before.
    distances(largest, space);
  }
  Ranking ranking(space, space.keys, width);
  auto& weights = space.weights;
  int64_t end = int64_t(weights.size());
  double sum = ranking.total();
  if (params.top_p < 1) {
    Ranking::Place last = ranking.reaching(params.top_p * sum, false);
    end = last.before + 1;
    sum = last.sum_before + weights[size_t(last.candidate)];
  }
  if (params.min_p > 0) {
    const double top = weights[size_t(ranking.at(0).candidate)];
    const double least = std::min(params.min_p, 1.0) * top;
    int64_t count = 0;
    double heavy = 0;
    for (double w : weights)
      if (w >= least) count++, heavy += w;
    if (count < end) end = count, sum = heavy;
  }
  Ranking::Place chosen = ranking.reaching(chooser.uniform() * sum, true);
  if (chosen.before >= end) chosen = ranking.at(end - 1);
  return space.ids[size_t(chosen.candidate)];
}

// ln Σ e^logit − largest, of finite logits (or -infinity).
double log_sum(const float* row, int n, double largest) {
  double part[16] = {};
  int i = 0;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; j++) part[j] += exp_minus(largest - double(row[i + j]));
  for (; i < n; i++) part[0] += exp_minus(largest - double(row[i]));
  return std::log(std::accumulate(part, part + 16, 0.0));
}

}  // namespace

Chooser::Chooser(SamplingParams params, uint64_t seed, int vocab, const int32_t* prompt,
                 size_t tokens)
    : params_(std::move(params)),
      seed_(seed),
      vocab_(vocab),
      penalises_((params_.repetition_penalty != 1 || params_.presence_penalty != 0 ||
                  params_.frequency_penalty != 0) &&
                 params_.repeat_last_n != 0) {
  for (auto [id, bias] : params_.logit_bias) {
    if (id < 0 || id >= vocab)
      throw std::out_of_range("logit_bias names token " + std::to_string(id) +
                              "; this model has tokens 0 to " + std::to_string(vocab - 1) + ".");
    if (bias <= kForbid)
      forbidden_.push_back(id);
    else
      biases_.emplace_back(id, bias);
  }
  std::stable_sort(biases_.begin(), biases_.end(),
                   [](auto& a, auto& b) { return a.first < b.first; });
  for (size_t i = 0; penalises_ && i < tokens; i++) remember(prompt[i]);
}

void Chooser::remember(int32_t token) {
  history_.push_back(token);
  if (token >= 0 && token < vocab_) counts_[token]++;
  const int64_t last = params_.repeat_last_n;
  if (last < 0 || int64_t(history_.size()) <= last) return;
  auto gone = counts_.find(history_[history_.size() - size_t(last) - 1]);
  if (gone != counts_.end() && --gone->second == 0) counts_.erase(gone);
}

void Chooser::accept(int32_t token) {
  accepted_++;
  if (penalises_) remember(token);
}

double Chooser::uniform() const {
  const uint64_t x = mix(mix(seed_) + (accepted_ + 1) * 0x9e3779b97f4a7c15u);
  return double(x >> 11) * 0x1p-53;
}

Choice choose(const float* row, const Chooser& chooser, const int32_t* banned, size_t bans,
              const uint32_t* mask, SamplingSpace& space) {
  const int vocab = chooser.vocab();
  if (vocab < 1 || !group_maxima(row, vocab, space.maxima)) return {};
  const Seen seen(row, chooser, banned, bans, mask, space);
  const Best best = best_of(seen.row(), vocab, space);
  int32_t token = best.id;
  if (token < 0) {  // all that is allowed is -infinity
    for (token = 0; !seen.allowed(token);) token++;
  } else if (chooser.params().temperature > 0) {
    token = draw(seen.row(), chooser, best.logit, space);
  }
  if (chooser.params().logprobs < 0) return {token, 0, {}};
  return raw_logprob(row, vocab, token, chooser.params().logprobs, space);
}

Choice raw_logprob(const float* row, int vocab, int32_t token, int top, SamplingSpace& space) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (vocab < 1 || !group_maxima(row, vocab, space.maxima)) return {token, kNone, {}};
  const double largest = double(*std::max_element(space.maxima.begin(), space.maxima.end()));
  if (largest == double(kLowest)) return {token, kNone, {}};
  const double sum = log_sum(row, vocab, largest);
  Choice choice{token, double(row[token]) - largest - sum, {}};
  if (top <= 0) return choice;
  gather_top(row, vocab, space.maxima, std::min(top, vocab), space.ids);
  std::sort(space.ids.begin(), space.ids.end(),
            [row](int32_t a, int32_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
  if (space.ids.size() > size_t(top)) space.ids.resize(size_t(top));
  for (int32_t id : space.ids) choice.top.emplace_back(id, double(row[id]) - largest - sum);
  return choice;
}

void choose_many(ChooseJob* jobs, int count, const Worker& w, std::atomic<int>* counter,
                 SamplingSpace* spaces) {
  for (;;) {
    int i = counter->fetch_add(1, std::memory_order_relaxed);
    if (i >= count) return;
    if (i > 0 && jobs[i - 1].chooser == jobs[i].chooser) continue;  // with the one before
    Chooser* chooser = jobs[i].chooser;
    for (; i < count && jobs[i].chooser == chooser; i++) {
      ChooseJob& job = jobs[i];
      job.result = choose(job.row, *chooser, job.banned, job.bans, job.mask, spaces[w.id]);
      if (job.result.token >= 0) chooser->accept(job.result.token);
    }
  }
}

void logprob_many(LogprobJob* jobs, int count, const Worker& w, std::atomic<int>* counter,
                  SamplingSpace* spaces) {
  for (int i; (i = counter->fetch_add(1, std::memory_order_relaxed)) < count;)
    jobs[i].result =
        raw_logprob(jobs[i].row, jobs[i].vocab, jobs[i].token, jobs[i].top, spaces[w.id]);
}

}  // namespace gm::inline GM_ISA
