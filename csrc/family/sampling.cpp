#include "sampling.h"

#include "sampling_chain.h"
#include "sampling_select.h"

namespace gm::inline GM_ISA {

namespace {

using namespace sample;

// The row as its chooser sees it: `row` with -infinity for what is not allowed and for the
// tokens whose logits differ from the model's, which are in space.changed (if allowed).
class Seen {
 public:
  Seen(const float* row, const Chooser& chooser, const int32_t* banned, size_t bans,
       const uint32_t* mask, SamplingSpace& space)
      : vocab_(chooser.vocab()), mask_(mask), space_(space) {
    decide_mask(chooser);
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
  int count(const uint32_t* mask) const {
    int set = 0;
    for (int w = 0; w < vocab_ / 32; w++) set += std::popcount(mask[w]);
    if (vocab_ % 32) set += std::popcount(mask[vocab_ / 32] << (32 - vocab_ % 32));
    return set;
  }

  // Step 1 of the specification: mask and list together, or the mask alone, or neither.
  void decide_mask(const Chooser& chooser) {
    auto& listed = chooser.listed();
    if (mask_ && !listed.empty()) {
      space_.mask = listed;
      for (size_t w = 0; w < listed.size(); w++) space_.mask[w] &= mask_[w];
      if (count(space_.mask.data()) > 0)
        mask_ = space_.mask.data();
      else
        bans_count_ = false;
    } else if (!listed.empty()) {
      mask_ = listed.data();
    }
    if (mask_ && count(mask_) == 0) mask_ = nullptr, bans_count_ = false;
  }

  // What is out besides, unless that would leave nothing.
  void decide_allowed(const Chooser& chooser, const int32_t* banned, size_t bans) {
    auto& out = space_.banned;
    out = chooser.forbidden();
    for (size_t i = 0; i < bans; i++)
      if (banned[i] >= 0 && banned[i] < vocab_) out.push_back(banned[i]);
    chooser.bad_now(out);
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    auto blocked = std::count_if(out.begin(), out.end(), [this](int32_t id) {
      return !mask_ || (mask_[id / 32] >> (id % 32) & 1);
    });
    if (!bans_count_ || blocked == (mask_ ? count(mask_) : vocab_)) out.clear();
  }

  // Biases, then the penalties that come before everything.
  void change(const float* row, const Chooser& chooser) {
    auto& changed = space_.changed;
    changed.clear();
    for (auto [id, bias] : chooser.biases()) {
      if (changed.empty() || changed.back().first != id) changed.emplace_back(id, row[id]);
      changed.back().second += bias;
    }
    for (auto& entry : changed)  // no sum of biases may make a NaN later
      entry.second = std::isnan(entry.second) ? double(kLowest) : std::min(entry.second, 1e300);
    if (chooser.penalises()) {
      const size_t biased = changed.size();
      for (auto& entry : chooser.counts())
        if (!known(entry.first, biased))
          changed.emplace_back(entry.first, double(row[entry.first]));
      sort_changed();
      for (auto& entry : changed) entry.second = chooser.penalised(entry.first, entry.second);
    }
    if (!chooser.dries()) return;
    const size_t before = changed.size();
    for (auto [id, loss] : chooser.dry_losses()) {
      if (auto* entry = known(id, before))
        entry->second -= loss;
      else
        changed.emplace_back(id, double(row[id]) - loss);
    }
    sort_changed();
  }

  // The entry of a token among the first `count`, which are sorted.
  std::pair<int32_t, double>* known(int32_t id, size_t count) {
    auto* begin = space_.changed.data();
    auto* found = std::lower_bound(
        begin, begin + count, id, [](auto& entry, int32_t wanted) { return entry.first < wanted; });
    return found != begin + count && found->first == id ? found : nullptr;
  }
  void sort_changed() {
    std::sort(space_.changed.begin(), space_.changed.end(),
              [](auto& a, auto& b) { return a.first < b.first; });
  }

  void blank(const float* row) {
    auto& copy = space_.row;
    copy.assign(row, row + vocab_);
    for (int w = 0; mask_ && w * 32 < vocab_; w++) {
      if (mask_[w] == ~0u) continue;
      const int end = std::min(32, vocab_ - w * 32);
      if (mask_[w] == 0) {
        std::fill_n(copy.begin() + w * 32, end, kLowest);
        continue;
      }
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
  bool bans_count_ = true;
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

// Sums of weights, by groups of kGroup tokens, into space.groups; their sum.
double group_weights(const float* row, int vocab, double t, double largest, SamplingSpace& space) {
  const double by = 1 / t;
  const size_t groups = space.maxima.size();
  space.groups.assign(groups, 0.0);
  for (size_t g = 0; g < groups; g++) {
    if (!((largest - double(space.maxima[g])) * by <= kReach)) continue;
    const int first = int(g) * kGroup, end = std::min(vocab, first + kGroup);
    space.groups[g] = sum_weights(row + first, end - first, largest, by);
  }
  for (auto [id, logit] : space.changed)
    space.groups[size_t(id / kGroup)] += exp_minus((largest - logit) * by);
  return std::accumulate(space.groups.begin(), space.groups.end(), 0.0);
}

// The draw from all of the vocabulary: the group where the sum is reached, then the token in it.
int32_t draw_all(const float* row, const Chooser& chooser, double largest, SamplingSpace& space) {
  const int vocab = chooser.vocab();
  const double by = 1 / chooser.params().temperature;
  const double total = group_weights(row, vocab, chooser.params().temperature, largest, space);
  const double goal = chooser.uniform() * total;
  double sum = 0;
  size_t g = 0, last = 0;
  for (size_t i = 0; i < space.groups.size(); i++)
    if (space.groups[i] > 0) last = i;
  for (; g < last && sum + space.groups[g] <= goal; g++) sum += space.groups[g];
  const int first = int(g) * kGroup, end = std::min(vocab, first + kGroup);
  auto change = std::lower_bound(space.changed.begin(), space.changed.end(), first,
                                 [](auto& entry, int id) { return entry.first < id; });
  int32_t chosen = -1;
  for (int i = first; i < end; i++) {
    double logit = double(row[i]);
    if (change != space.changed.end() && change->first == i) logit = (change++)->second;
    if (logit == double(kLowest)) continue;
    chosen = i;
    if ((sum += exp_minus((largest - logit) * by)) > goal) break;
  }
  return chosen;
}

// space.changed of `bound` or more among space.ids, logits of all into space.logits.
void merge_changed(const float* row, double bound, SamplingSpace& space) {
  auto& changed = space.changed;
  std::erase_if(changed, [bound](auto& entry) {
    return !(entry.second >= bound) || entry.second == double(kLowest);
  });
  size_t from = space.ids.size(), more = changed.size(), to = from + more;
  space.ids.resize(to);
  space.logits.resize(to);
  while (to > 0) {  // from the back, so that nothing is overwritten
    const bool change = more > 0 && (from == 0 || changed[more - 1].first > space.ids[from - 1]);
    to--;
    if (change) {
      space.ids[to] = changed[--more].first;
      space.logits[to] = changed[more].second;
    } else {
      space.ids[to] = space.ids[--from];
      space.logits[to] = double(row[space.ids[to]]);
    }
  }
}

// Candidates of a plain chain, their logits by temperature; steps are then done on them.
// Where top_p comes first, only as many are gathered as reach it.
void plain_chain(const float* row, int vocab, const SamplingParams& p, double largest,
                 SamplingSpace& space) {
  const double t = p.temperature;
  const bool by_count = p.top_k > 0 && p.top_k < vocab;
  const bool only_min_p = p.typical_p >= 1 && p.top_p >= 1 && p.min_p > 0;
  const bool first_top_p = !by_count && p.typical_p >= 1 && p.top_p < 1;
  const auto changed = space.changed;
  auto gather = [&](double bound) {
    space.changed = changed;
    if (by_count)
      gather_top(row, vocab, space.maxima, p.top_k, space.ids, space.values);
    else
      gather_above(row, vocab, space.maxima, bound, space.ids);
    merge_changed(row, by_count ? double(kLowest) : bound, space);
    for (double& l : space.logits) l = (l - largest) / t;
  };
  Candidates candidates(space, largest / t);
  double whole = 0;
  if (first_top_p) {
    whole = group_weights(row, vocab, t, largest, space);
    for (double reach : {8.0, kReach}) {
      gather(largest - reach * t);
      double sum = 0;
      for (double l : space.logits) sum += exp_minus(-l);
      if (sum >= p.top_p * whole) break;
    }
  } else {
    const double most = only_min_p ? 1e-6 - std::log(std::min(p.min_p, 1.0)) : kReach;
    gather(largest - std::min(most, kReach) * t);
  }
  if (by_count) candidates.top_k(p.top_k);
  if (p.typical_p < 1) candidates.typical(p.typical_p, 0);
  if (p.top_p < 1) candidates.top_p(p.top_p, whole, 0);
  if (p.min_p > 0) candidates.min_p(p.min_p, 0);
}

// Candidates of any other chain: all, or the first k where the chain begins with top_k.
void any_chain(const float* row, const Chooser& chooser, double largest, SamplingSpace& space) {
  const SamplingParams& p = chooser.params();
  auto& chain = chooser.chain();
  size_t first = 0;  // a plain temperature changes no order
  if (!chain.empty() && chain[0] == Step::temperature && p.temperature > 0 && p.dynatemp_range <= 0)
    first = 1;
  if (chain.size() > first && chain[first] == Step::top_k && p.top_k > 0 &&
      p.top_k < chooser.vocab())
    gather_top(row, chooser.vocab(), space.maxima, p.top_k, space.ids, space.values);
  else
    gather_above(row, chooser.vocab(), space.maxima, double(kLowest), space.ids);
  merge_changed(row, double(kLowest), space);
  for (double& l : space.logits) l -= largest;
}

// Steps 3 and 4 of the specification, where some logit is finite.
Choice draw(const float* row, Chooser& chooser, Best best, SamplingSpace& space) {
  const SamplingParams& p = chooser.params();
  const bool told = p.logprobs >= 0 && p.post_sampling;
  if (p.plain && p.temperature <= 0) return {best.id, 0, {{best.id, 0.0}}};
  const bool cut = p.top_k > 0 || p.typical_p < 1 || p.top_p < 1 || p.min_p > 0;
  if (p.plain && !cut && !told) return {draw_all(row, chooser, best.logit, space), 0, {}};
  Candidates candidates(space, best.logit);
  if (p.plain) {
    plain_chain(row, chooser.vocab(), p, best.logit, space);
  } else {
    any_chain(row, chooser, best.logit, space);
    int xtcs = 0;
    for (Step step : chooser.chain()) candidates.apply(step, chooser, xtcs);
  }
  const size_t place = candidates.draw(chooser.uniform());
  const int32_t token = space.ids[place];
  if (candidates.adapted()) chooser.learn_probability(token, candidates.probability_before(place));
  if (p.mirostat) chooser.learn_surprise(token, candidates.probability(place));
  if (told) return candidates.told(place, p.logprobs);
  return {token, 0, {}};
}

// ln Σ e^logit − largest, of finite logits (or -infinity).
double log_sum(const float* row, int n, double largest) {
  return std::log(sum_weights(row, n, largest, 1.0));
}

}  // namespace

Choice choose(const float* row, Chooser& chooser, const int32_t* banned, size_t bans,
              const uint32_t* mask, SamplingSpace& space) {
  const int vocab = chooser.vocab();
  if (vocab < 1 || !group_maxima(row, vocab, space.maxima)) return {};
  const SamplingParams& params = chooser.params();
  chooser.forget();
  const Seen seen(row, chooser, banned, bans, mask, space);
  const Best best = best_of(seen.row(), vocab, space);
  Choice choice;
  if (best.id < 0) {  // all that is allowed is -infinity
    for (choice.token = 0; !seen.allowed(choice.token);) choice.token++;
    choice.top = {{choice.token, 0.0}};
  } else {
    choice = draw(seen.row(), chooser, best, space);
  }
  if (params.logprobs < 0) return {choice.token, 0, {}};
  if (!params.post_sampling) return raw_logprob(row, vocab, choice.token, params.logprobs, space);
  if (choice.top.size() > size_t(params.logprobs)) choice.top.resize(size_t(params.logprobs));
  return choice;
}

Choice raw_logprob(const float* row, int vocab, int32_t token, int top, SamplingSpace& space) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (vocab < 1 || !group_maxima(row, vocab, space.maxima)) return {token, kNone, {}};
  const double largest = double(*std::max_element(space.maxima.begin(), space.maxima.end()));
  if (largest == double(kLowest)) return {token, kNone, {}};
  const double sum = log_sum(row, vocab, largest);
  Choice choice{token, double(row[token]) - largest - sum, {}};
  if (top <= 0) return choice;
  gather_top(row, vocab, space.maxima, std::min(top, vocab), space.ids, space.values);
  std::sort(space.ids.begin(), space.ids.end(),
            [row](int32_t a, int32_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
  if (space.ids.size() > size_t(top)) space.ids.resize(size_t(top));
  for (int32_t id : space.ids) choice.top.emplace_back(id, double(row[id]) - largest - sum);
  return choice;
}

void choose_many(ChooseJob* jobs, int count, int begin, int end, SamplingSpace& space) {
  for (int first = begin; first < end; first++) {
    Chooser* chooser = jobs[first].chooser;
    if (first > 0 && jobs[first - 1].chooser == chooser) continue;  // with the one before
    for (int i = first; i < count && jobs[i].chooser == chooser; i++) {
      ChooseJob& job = jobs[i];
      job.result = choose(job.row, *chooser, job.banned, job.bans, job.mask, space);
      if (job.result.token >= 0) chooser->accept(job.result.token);
    }
  }
}

void logprob_many(LogprobJob* jobs, int begin, int end, SamplingSpace& space) {
  for (int i = begin; i < end; i++)
    jobs[i].result = raw_logprob(jobs[i].row, jobs[i].vocab, jobs[i].token, jobs[i].top, space);
}

}  // namespace gm::inline GM_ISA
