// The sampler's door: checks what Python passes, runs on the pool without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>

#include "family/sampling.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gm::inline GM_ISA {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Chosen = std::tuple<int32_t, double, std::vector<std::pair<int32_t, double>>>;

const float* row_of(const Logits& logits, int64_t row) {
  if (logits.stride(1) != 1) throw std::invalid_argument("the logits of a row must be contiguous");
  if (row < 0 || row >= int64_t(logits.shape(0))) throw std::out_of_range("no such row of logits");
  return logits.data() + row * logits.stride(0);
}

Chosen tuple_of(Choice&& c) { return {c.token, c.logprob, std::move(c.top)}; }

// Chooses for a step's rows; keeps the workers' buffers between steps.
class Sampler {
 public:
  explicit Sampler(std::shared_ptr<Pool> pool)
      : pool_(std::move(pool)), spaces_(size_t(pool_->threads())) {}

  std::vector<Chosen> choose(const Logits& logits, const std::vector<int64_t>& rows,
                             const std::vector<Chooser*>& choosers,
                             const std::vector<std::vector<int32_t>>& banned,
                             const std::vector<std::optional<Mask>>& masks) {
    size_t n = rows.size();
    if (choosers.size() != n || banned.size() != n || (!masks.empty() && masks.size() != n))
      throw std::invalid_argument("rows, choosers, banned and masks must be equally many");
    std::vector<ChooseJob> jobs(n);
    for (size_t i = 0; i < n; i++) {
      size_t vocab = size_t(choosers[i]->vocab());
      if (vocab != logits.shape(1)) throw std::invalid_argument("a chooser of another vocabulary");
      const uint32_t* mask = nullptr;
      if (!masks.empty() && masks[i]) {
        if (masks[i]->shape(0) * 32 < vocab) throw std::invalid_argument("a mask is too short");
        mask = masks[i]->data();
      }
      jobs[i] = {row_of(logits, rows[i]), choosers[i], banned[i].data(),
                 banned[i].size(),        mask,        {}};
    }
    {
      nb::gil_scoped_release nogil;
      run(n, [&](int64_t begin, int64_t end, const Worker& w) {
        choose_many(jobs.data(), int(n), int(begin), int(end), spaces_[size_t(w.id)]);
      });
    }
    std::vector<Chosen> all;
    for (ChooseJob& job : jobs) all.push_back(tuple_of(std::move(job.result)));
    return all;
  }

  std::vector<Chosen> logprobs(const Logits& logits, const std::vector<int64_t>& rows,
                               const std::vector<int32_t>& tokens, int top) {
    if (rows.size() != tokens.size() || top < 0)
      throw std::invalid_argument("rows and tokens must be equally many, top not negative");
    int vocab = int(logits.shape(1));
    std::vector<LogprobJob> jobs(rows.size());
    for (size_t i = 0; i < rows.size(); i++) {
      if (tokens[i] < 0 || tokens[i] >= vocab) throw std::out_of_range("no such token");
      jobs[i] = {row_of(logits, rows[i]), vocab, tokens[i], std::min(top, vocab), {}};
    }
    {
      nb::gil_scoped_release nogil;
      run(jobs.size(), [&](int64_t begin, int64_t end, const Worker& w) {
        logprob_many(jobs.data(), int(begin), int(end), spaces_[size_t(w.id)]);
      });
    }
    std::vector<Chosen> all;
    for (LogprobJob& job : jobs) all.push_back(tuple_of(std::move(job.result)));
    return all;
  }

 private:
  // One row is done sooner alone than the workers are woken.
  template <class Work>
  void run(size_t jobs, const Work& work) {
    if (jobs > 1)
      pool_->each(int64_t(jobs), 1, work);
    else
      work(0, int64_t(jobs), Worker{0, 1});
  }
  std::shared_ptr<Pool> pool_;
  std::vector<SamplingSpace> spaces_;
};

}  // namespace
}  // namespace gm::inline GM_ISA

using namespace gm::GM_ISA;

void bind_sampling(nb::module_& m) {
  using P = SamplingParams;
  nb::class_<P>(m, "SamplingParams")
      .def(nb::init<>())
      .def_rw("temperature", &P::temperature)
      .def_rw("top_k", &P::top_k)
      .def_rw("top_p", &P::top_p)
      .def_rw("min_p", &P::min_p)
      .def_rw("typical_p", &P::typical_p)
      .def_rw("repetition_penalty", &P::repetition_penalty)
      .def_rw("presence_penalty", &P::presence_penalty)
      .def_rw("frequency_penalty", &P::frequency_penalty)
      .def_rw("repeat_last_n", &P::repeat_last_n)
      .def_rw("logit_bias", &P::logit_bias)
      .def_rw("logprobs", &P::logprobs)
      .def_rw("post_sampling", &P::post_sampling)
      .def_rw("penalise_prompt", &P::penalise_prompt)
      .def_rw("lists_allowed", &P::lists_allowed)
      .def_rw("allowed", &P::allowed)
      .def_rw("bad_words", &P::bad_words)
      .def_rw("dry_multiplier", &P::dry_multiplier)
      .def_rw("dry_base", &P::dry_base)
      .def_rw("dry_allowed_length", &P::dry_allowed_length)
      .def_rw("dry_penalty_last_n", &P::dry_penalty_last_n)
      .def_rw("dry_breakers", &P::dry_breakers)
      .def_rw("top_n_sigma", &P::top_n_sigma)
      .def_rw("xtc_probability", &P::xtc_probability)
      .def_rw("xtc_threshold", &P::xtc_threshold)
      .def_rw("dynatemp_range", &P::dynatemp_range)
      .def_rw("dynatemp_exponent", &P::dynatemp_exponent)
      .def_rw("mirostat", &P::mirostat)
      .def_rw("mirostat_tau", &P::mirostat_tau)
      .def_rw("mirostat_eta", &P::mirostat_eta)
      .def_rw("adaptive_target", &P::adaptive_target)
      .def_rw("adaptive_decay", &P::adaptive_decay)
      .def_rw("min_keep", &P::min_keep)
      .def_rw("plain", &P::plain)
      .def_prop_rw(
          "chain",
          [](const P& p) {
            std::vector<int> steps;
            for (Step step : p.chain) steps.push_back(int(step));
            return steps;
          },
          [](P& p, const std::vector<int>& steps) {
            p.chain.clear();
            for (int step : steps) {
              if (step < 0 || step > int(Step::adaptive)) throw std::out_of_range("no such step");
              p.chain.push_back(Step(step));
            }
          });

  nb::class_<Chooser>(m, "Chooser")
      .def(
          "__init__",
          [](Chooser* self, const P& params, int vocab, uint64_t seed, Ids prompt) {
            new (self) Chooser(params, seed, vocab, prompt.data(), prompt.shape(0));
          },
          "params"_a, "vocab"_a, "seed"_a, "prompt"_a)
      .def("accept", &Chooser::accept, "token"_a);

  nb::class_<Sampler>(m, "Sampler")
      .def(nb::init<std::shared_ptr<Pool>>(), "pool"_a)
      .def("choose", &Sampler::choose, "logits"_a, "rows"_a, "choosers"_a, "banned"_a, "masks"_a)
      .def("logprobs", &Sampler::logprobs, "logits"_a, "rows"_a, "tokens"_a, "top"_a);
}
