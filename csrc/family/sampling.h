// Choosing the next token of a row of logits, equal choice for choice to the specification in
// src/gristmill/backends/reference/{sampling,steps}.py, without sorting the vocabulary.
#pragma once
#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "../threads.h"

namespace gm::inline GM_ISA {

// In the order of gristmill.backends.chain.STEPS.
enum class Step : int32_t {
  penalties,
  dry,
  top_n_sigma,
  temperature,
  top_k,
  typical,
  top_p,
  min_p,
  xtc,
  mirostat_1,
  mirostat_2,
  adaptive,
};

// As gristmill.types.SamplingParams; the values are checked by whoever makes one.
struct SamplingParams {
  double temperature = 1;  // 0: greedy
  int top_k = 0;           // 0: all
  double top_p = 1, min_p = 0, typical_p = 1;
  double repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  int repeat_last_n = -1;  // -1: all, 0: none
  std::vector<std::pair<int32_t, double>> logit_bias;
  int logprobs = -1;  // -1: none; else this many alternatives
  bool post_sampling = false;
  bool penalise_prompt = true;
  bool lists_allowed = false;
  std::vector<int32_t> allowed;
  std::vector<std::vector<int32_t>> bad_words;
  double dry_multiplier = 0, dry_base = 1.75;
  int dry_allowed_length = 2, dry_penalty_last_n = 64;
  std::vector<std::vector<int32_t>> dry_breakers;
  double top_n_sigma = 0, xtc_probability = 0, xtc_threshold = 0.1;
  double dynatemp_range = 0, dynatemp_exponent = 1;
  int mirostat = 0;
  double mirostat_tau = 5, mirostat_eta = 0.1;
  double adaptive_target = -1, adaptive_decay = 0.9;
  int min_keep = 0;
  // Not plain: these steps. Plain: penalties, dry, temperature, top_k, typical, top_p and min_p,
  // as far as the values above ask for them.
  bool plain = true;
  std::vector<Step> chain;
};

// How often a token occurs in what penalties look back on, and in the answer's part of it.
struct Count {
  int all = 0, answer = 0;
};

// One answer's sampling state.
class Chooser {
 public:
  // Throws std::out_of_range for a bias on a token, or a token in a list, that is not in the
  // vocabulary.
  Chooser(SamplingParams params, uint64_t seed, int vocab, const int32_t* prompt, size_t tokens);
  void accept(int32_t token);

  const SamplingParams& params() const { return params_; }
  int vocab() const { return vocab_; }
  // The steps of the chain that are not among penalises() and dries(), which come before them.
  const std::vector<Step>& chain() const { return chain_; }
  // Whether a token's past changes its logit before the chain.
  bool penalises() const { return penalises_; }
  bool dries() const { return dries_; }
  // A logit after penalties.
  double penalised(int32_t token, double logit) const;
  // The tokens whose logits penalties change.
  const std::unordered_map<int32_t, Count>& counts() const { return counts_; }
  // Tokens that would go on with a repetition, and what their logits lose for it.
  std::vector<std::pair<int32_t, double>> dry_losses() const;
  // Tokens that a bias forbids, and the other biases; both by id.
  const std::vector<int32_t>& forbidden() const { return forbidden_; }
  const std::vector<std::pair<int32_t, double>>& biases() const { return biases_; }
  // Appends the tokens that would end a bad word.
  void bad_now(std::vector<int32_t>& out) const;
  // A bit per token that is listed as allowed; empty without a list.
  const std::vector<uint32_t>& listed() const { return listed_; }
  // The random number in [0, 1) of the next token, by stream.
  double uniform(uint64_t stream = 0) const;
  double mu() const { return mu_; }
  double adaptive_target() const;
  // What the chosen token, of probability `p`, will do to mirostat and adaptive-p when accepted.
  void learn_surprise(int32_t token, double p);
  void learn_probability(int32_t token, double p);
  void forget() { pending_ = -1; }

 private:
  void check_ids() const;
  void remember(int32_t token, bool answer);
  size_t since_breaker(const int32_t* seen, size_t count) const;
  SamplingParams params_;
  uint64_t seed_, accepted_ = 0;
  int vocab_;
  std::vector<Step> chain_;
  bool penalises_ = false, dries_ = false, counting_ = false, keeping_ = false;
  size_t prompt_ = 0;
  std::vector<int32_t> history_;
  std::unordered_map<int32_t, Count> counts_;
  std::vector<int32_t> forbidden_;
  std::vector<std::pair<int32_t, double>> biases_;
  std::vector<uint32_t> listed_;
  std::unordered_set<int32_t> alone_;                                      // breakers of one token
  std::unordered_map<int32_t, std::vector<std::vector<int32_t>>> longer_;  // by their first
  double mu_, weighted_, total_;
  int32_t pending_ = -1;
  double next_mu_ = 0, next_weighted_ = 0, next_total_ = 0;
};

struct Choice {
  // -1: the logits are NaN or +infinity somewhere, and nothing was chosen.
  int32_t token = -1;
  double logprob = 0;  // 0 and empty where not asked
  std::vector<std::pair<int32_t, double>> top;
};

// Buffers of one worker, kept between calls.
struct SamplingSpace {
  std::vector<float> row, maxima, values;
  std::vector<double> logits, weights, keys, sums, groups;
  std::vector<int32_t> ids, order, classes, counts, banned;
  std::vector<uint32_t> mask;
  std::vector<uint8_t> marks;
  std::vector<std::pair<int32_t, double>> changed;
};

// Chooses from row [vocab of the chooser]; does not accept. `mask`, or null, has a bit per
// token: bit id % 32 of word id / 32.
Choice choose(const float* row, Chooser& chooser, const int32_t* banned, size_t bans,
              const uint32_t* mask, SamplingSpace& space);

// The log-probability of a token in the raw distribution, with the `top` best. NaN and no
// alternatives where the logits are NaN or +infinity somewhere.
Choice raw_logprob(const float* row, int vocab, int32_t token, int top, SamplingSpace& space);

struct ChooseJob {
  const float* row;
  Chooser* chooser;
  const int32_t* banned;
  size_t bans;
  const uint32_t* mask;
  Choice result;
};

// Chooses and accepts for jobs [begin, end) of `count`. Jobs of one chooser that follow each other
// are done in order, with the first of them, even beyond `end`. Nothing is accepted where
// nothing was chosen.
void choose_many(ChooseJob* jobs, int count, int begin, int end, SamplingSpace& space);

struct LogprobJob {
  const float* row;
  int vocab;
  int32_t token;
  int top;
  Choice result;
};
void logprob_many(LogprobJob* jobs, int begin, int end, SamplingSpace& space);

}  // namespace gm::inline GM_ISA
