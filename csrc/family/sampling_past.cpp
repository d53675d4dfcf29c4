// What an answer's past does to its next token: counts, repetitions, bad words, random numbers.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "sampling.h"

namespace gm::inline GM_ISA {

namespace {

constexpr double kForbid = -100;  // a bias of this or less forbids its token
constexpr double kMostLogit = 1e300;

// splitmix64's finaliser (Steele et al., OOPSLA 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

double decay_of(const SamplingParams& p) { return std::clamp(p.adaptive_decay, 0.0, 0.99); }

bool penalises_at_all(const SamplingParams& p) {
  return (p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0) &&
         p.repeat_last_n != 0;
}

bool dries_at_all(const SamplingParams& p) {
  return p.dry_multiplier != 0 && p.dry_base >= 1 && p.dry_penalty_last_n != 0;
}

// For each place of `seen`, how many tokens before it equal the end of all (so, read backwards,
// how long a prefix begins there): Gusfield's Z-algorithm.
std::vector<size_t> repeats_before(const int32_t* seen, size_t count) {
  auto back = [&](size_t i) { return seen[count - 1 - i]; };
  std::vector<size_t> z(count, 0);
  size_t left = 0, right = 0;  // the furthest match found so far: back[left, right)
  for (size_t i = 1; i < count; i++) {
    size_t run = i < right ? std::min(right - i, z[i - left]) : 0;
    while (i + run < count && back(run) == back(i + run)) run++;
    z[i] = run;
    if (i + run > right) left = i, right = i + run;
  }
  std::vector<size_t> before(count, 0);
  for (size_t place = 1; place < count; place++) before[place] = z[count - place];
  return before;
}

}  // namespace

Chooser::Chooser(SamplingParams params, uint64_t seed, int vocab, const int32_t* prompt,
                 size_t tokens)
    : params_(std::move(params)), seed_(seed), vocab_(vocab), chain_(params_.chain) {
  check_ids();
  for (auto [id, bias] : params_.logit_bias) {
    if (bias <= kForbid)
      forbidden_.push_back(id);
    else
      biases_.emplace_back(id, bias);
  }
  std::stable_sort(biases_.begin(), biases_.end(),
                   [](auto& a, auto& b) { return a.first < b.first; });
  if (params_.plain) {
    chain_.clear();
    penalises_ = penalises_at_all(params_);
    dries_ = dries_at_all(params_);
  } else {  // the chain's beginning may be done before any candidate is looked at
    auto begins = [&](Step step) { return !chain_.empty() && chain_.front() == step; };
    if ((penalises_ = begins(Step::penalties))) chain_.erase(chain_.begin());
    if ((dries_ = begins(Step::dry))) chain_.erase(chain_.begin());
  }
  auto later = [&](Step step) {
    return std::find(chain_.begin(), chain_.end(), step) != chain_.end();
  };
  counting_ = penalises_ || later(Step::penalties);
  const bool drying = dries_ || later(Step::dry);
  keeping_ = counting_ || drying || !params_.bad_words.empty();
  if (params_.lists_allowed) {
    listed_.assign(size_t(vocab + 31) / 32, 0);
    for (int32_t id : params_.allowed) listed_[size_t(id) / 32] |= 1u << (id % 32);
  }
  for (auto& run : params_.dry_breakers) {
    if (!drying || run.empty()) continue;
    if (run.size() == 1)
      alone_.insert(run[0]);
    else
      longer_[run[0]].push_back(run);
  }
  mu_ = 2 * params_.mirostat_tau;
  weighted_ = params_.adaptive_target / (1 - decay_of(params_));
  total_ = 1 / (1 - decay_of(params_));
  prompt_ = keeping_ ? tokens : 0;
  for (size_t i = 0; keeping_ && i < tokens; i++) remember(prompt[i], false);
}

void Chooser::check_ids() const {
  auto check = [this](const char* name, int32_t id) {
    if (id < 0 || id >= vocab_)
      throw std::out_of_range(std::string(name) + " names token " + std::to_string(id) +
                              "; this model has tokens 0 to " + std::to_string(vocab_ - 1) + ".");
  };
  for (auto& bias : params_.logit_bias) check("logit_bias", bias.first);
  for (int32_t id : params_.allowed) check("allowed_token_ids", id);
  for (auto& word : params_.bad_words)
    for (int32_t id : word) check("bad_words", id);
}

void Chooser::remember(int32_t token, bool answer) {
  history_.push_back(token);
  if (!counting_) return;
  auto known = [this](int32_t id) { return id >= 0 && id < vocab_; };
  if (known(token)) {
    Count& count = counts_[token];
    count.all++;
    count.answer += answer;
  }
  const int64_t last = params_.repeat_last_n;
  if (last < 0 || int64_t(history_.size()) <= last) return;
  const size_t left = history_.size() - size_t(last) - 1;
  auto gone = counts_.find(history_[left]);
  if (gone == counts_.end()) return;
  gone->second.answer -= left >= prompt_;
  if (--gone->second.all == 0) counts_.erase(gone);
}

void Chooser::accept(int32_t token) {
  accepted_++;
  if (keeping_) remember(token, true);
  if (pending_ == token) mu_ = next_mu_, weighted_ = next_weighted_, total_ = next_total_;
  pending_ = -1;
}

double Chooser::penalised(int32_t token, double logit) const {
  auto found = counts_.find(token);
  if (found == counts_.end()) return logit;
  const double by = params_.repetition_penalty;
  if (by != 1.0) logit = logit > 0 ? logit / by : logit * by;
  const int count = params_.penalise_prompt ? found->second.all : found->second.answer;
  if (count > 0) logit -= count * params_.frequency_penalty + params_.presence_penalty;
  return std::min(logit, kMostLogit);
}

size_t Chooser::since_breaker(const int32_t* seen, size_t count) const {
  for (size_t start = count; start-- > 0;) {
    size_t longest = alone_.contains(seen[start]) ? 1 : 0;
    auto runs = longer_.find(seen[start]);
    if (runs != longer_.end())
      for (auto& run : runs->second)
        if (run.size() > longest && run.size() <= count - start &&
            std::equal(run.begin(), run.end(), seen + start))
          longest = run.size();
    if (longest > 0) return count - start - longest;
  }
  return count;
}

std::vector<std::pair<int32_t, double>> Chooser::dry_losses() const {
  const int64_t last = params_.dry_penalty_last_n;
  const size_t allowed = size_t(std::max(params_.dry_allowed_length, 0));
  const size_t count = last < 0 ? history_.size() : std::min(history_.size(), size_t(last));
  const int32_t* seen = history_.data() + (history_.size() - count);
  std::vector<std::pair<int32_t, double>> losses;
  if (count <= allowed) return losses;
  const size_t bound = since_breaker(seen, count);
  if (bound < allowed) return losses;
  const auto before = repeats_before(seen, count);
  std::unordered_map<int32_t, size_t> longest;
  for (size_t place = 1; place < count; place++) {
    const size_t run = std::min(before[place], bound);
    if (run < allowed || alone_.contains(seen[place])) continue;
    size_t& most = longest[seen[place]];
    most = std::max(most, run);
  }
  // base^x stays a float, as it must in llama.cpp.
  const double base = params_.dry_base;
  const size_t most = base > 1.000001 ? size_t(88.7228391 / std::log(base)) : 0;
  for (auto [token, run] : longest) {
    if (token < 0 || token >= vocab_) continue;
    const size_t power = most > 0 ? std::min(run - allowed, most) : run - allowed;
    losses.emplace_back(token, params_.dry_multiplier * std::pow(base, double(power)));
  }
  return losses;
}

void Chooser::bad_now(std::vector<int32_t>& out) const {
  const size_t answer = history_.size() - prompt_;
  for (auto& word : params_.bad_words) {
    if (word.empty() || word.size() - 1 > answer) continue;
    if (std::equal(word.begin(), word.end() - 1, history_.end() - ptrdiff_t(word.size() - 1)))
      out.push_back(word.back());
  }
}

double Chooser::uniform(uint64_t stream) const {
  const uint64_t start = mix(seed_ ^ (stream * 0xd1b54a32d192ed03u));
  return double(mix(start + (accepted_ + 1) * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
}

double Chooser::adaptive_target() const {
  return std::clamp(2 * std::min(params_.adaptive_target, 1.0) - weighted_ / total_, 0.0, 1.0);
}

void Chooser::learn_surprise(int32_t token, double p) {
  pending_ = token;
  next_mu_ = mu_ - params_.mirostat_eta * (-std::log2(p) - params_.mirostat_tau);
  next_weighted_ = weighted_, next_total_ = total_;
}

void Chooser::learn_probability(int32_t token, double p) {
  pending_ = token;
  next_mu_ = mu_;
  next_weighted_ = p + decay_of(params_) * weighted_;
  next_total_ = 1 + decay_of(params_) * total_;
}

}  // namespace gm::inline GM_ISA
