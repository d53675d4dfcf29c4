// Choosing the next token of a row of logits, equal choice for choice to the specification in
// src/gristmill/backends/reference/sampling.py, without sorting the vocabulary.
#pragma once
#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../threads.h"

namespace gm::inline GM_ISA {

// As gristmill.types.SamplingParams; the values are checked by whoever makes one.
struct SamplingParams {
  double temperature = 1;  // 0: greedy
  int top_k = 0;           // 0: all
  double top_p = 1, min_p = 0, typical_p = 1;
  double repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  int repeat_last_n = -1;  // -1: all, 0: none
  std::vector<std::pair<int32_t, double>> logit_bias;
  int logprobs = -1;  // -1: none; else this many alternatives
};

// One answer's sampling state.
class Chooser {
 public:
  // Throws std::out_of_range for a bias on a token that is not in the vocabulary.
  Chooser(SamplingParams params, uint64_t seed, int vocab, const int32_t* prompt, size_t tokens);
  void accept(int32_t token);

  const SamplingParams& params() const { return params_; }
  int vocab() const { return vocab_; }
  // Whether a token's past changes its logit.
  bool penalises() const { return penalises_; }
  // How often each token occurs in what penalties look back on; empty unless penalises().
  const std::unordered_map<int32_t, int>& counts() const { return counts_; }
  // Tokens that a bias forbids, and the other biases; both by id.
  const std::vector<int32_t>& forbidden() const { return forbidden_; }
  const std::vector<std::pair<int32_t, double>>& biases() const { return biases_; }
  // The random number in [0, 1) of the next token.
  double uniform() const;

 private:
  void remember(int32_t token);
  SamplingParams params_;
  uint64_t seed_, accepted_ = 0;
  int vocab_;
  bool penalises_;
  std::vector<int32_t> history_;
  std::unordered_map<int32_t, int> counts_;
  std::vector<int32_t> forbidden_;
  std::vector<std::pair<int32_t, double>> biases_;
};

struct Choice {
  // -1: the logits are NaN or +infinity somewhere, and nothing was chosen.
  int32_t token = -1;
  double logprob = 0;  // 0 and empty where not asked
  std::vector<std::pair<int32_t, double>> top;
};

// Buffers of one worker, kept between calls.
struct SamplingSpace {
  std::vector<float> row, maxima;
  std::vector<double> logits, weights, keys, sums;
  std::vector<int32_t> ids, order, classes, counts, banned;
  std::vector<std::pair<int32_t, double>> changed;
};

// Chooses from row [vocab of the chooser]; does not accept. `mask`, or null, has a bit per
// token: bit id % 32 of word id / 32.
Choice choose(const float* row, const Chooser& chooser, const int32_t* banned, size_t bans,
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

// Chooses and accepts for all jobs, by all workers together; jobs of one chooser that follow
// each other are done in order. `counter` is an atomic at zero, `spaces` has one per worker.
// Nothing is accepted where nothing was chosen.
void choose_many(ChooseJob* jobs, int count, const Worker& w, std::atomic<int>* counter,
                 SamplingSpace* spaces);

struct LogprobJob {
  const float* row;
  int vocab;
  int32_t token;
  int top;
  Choice result;
};
void logprob_many(LogprobJob* jobs, int count, const Worker& w, std::atomic<int>* counter,
                  SamplingSpace* spaces);

}  // namespace gm::inline GM_ISA
