// The candidates for a token, and the steps that cut them down: steps.py of the reference.
#pragma once
#include "sampling.h"

namespace gm::inline GM_ISA::sample {

// Candidates are space.ids, in rising order, and space.logits: finite, relative to `shift`.
// Everything here works on these two in place; space.weights are theirs after weigh().
class Candidates {
 public:
  Candidates(SamplingSpace& space, double shift) : space_(space), shift_(shift) {}

  size_t size() const { return space_.ids.size(); }
  // One step of a chain. `xtcs` counts the XTC steps so far.
  void apply(Step step, const Chooser& chooser, int& xtcs);
  void top_k(int64_t k);
  void typical(double share, int min_keep);
  // Keeps the first whose weights sum to `share` of `whole`, or of their own sum if that is 0.
  void top_p(double share, double whole, int min_keep);
  void min_p(double share, int min_keep);
  // The candidate, by place, at which the sum of weights exceeds `u` of all.
  size_t draw(double u);
  // What was drawn: its probability now, and before adaptive-p (or the same).
  double probability(size_t place);
  double probability_before(size_t place) const { return space_.keys[place]; }
  bool adapted() const { return adapted_; }
  // Log-probabilities of the candidate at a place and of the `top` best.
  Choice told(size_t place, int top);

 private:
  double largest() const;
  double weigh();  // the sum of the weights
  void distances();
  template <class Keep>
  void keep_if(Keep keep);
  void keep_first(int64_t count);
  void replace(const std::vector<double>& logits);
  void temperature(double t, double range, double exponent);
  void top_n_sigma(double n);
  void xtc(double threshold, int min_keep);
  void mirostat_1(double mu, int vocab);
  void mirostat_2(double mu);
  void adaptive(double target);
  void penalise(const Chooser& chooser);
  void dry(const Chooser& chooser);

  SamplingSpace& space_;
  double shift_;
  bool adapted_ = false;
};

}  // namespace gm::inline GM_ISA::sample
