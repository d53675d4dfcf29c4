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
      std::atomic<int> counter{0};
      auto region = [&](const Worker& w) {
        choose_many(jobs.data(), int(n), w, &counter, spaces_.data());
      };
      run(n, region);
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
      std::atomic<int> counter{0};
      auto region = [&](const Worker& w) {
        logprob_many(jobs.data(), int(jobs.size()), w, &counter, spaces_.data());
      };
      run(jobs.size(), region);
    }
    std::vector<Chosen> all;
    for (LogprobJob& job : jobs) all.push_back(tuple_of(std::move(job.result)));
    return all;
  }

 private:
  // One row is done sooner alone than the workers are woken.
  template <class Region>
  void run(size_t jobs, const Region& region) {
    if (jobs > 1)
      pool_->run(region);
    else
      region(Worker{0, 1, pool_.get()});
  }
  std::shared_ptr<Pool> pool_;
  std::vector<SamplingSpace> spaces_;
};

}  // namespace
}  // namespace gm::inline GM_ISA

using namespace gm::GM_ISA;

void bind_sampling(nb::module_& m) {
  nb::class_<Chooser>(m, "Chooser")
      .def(
          "__init__",
          [](Chooser* self, int vocab, uint64_t seed, Ids prompt, double temperature, int top_k,
             double top_p, double min_p, double typical_p, double repetition_penalty,
             double presence_penalty, double frequency_penalty, int repeat_last_n,
             std::vector<std::pair<int32_t, double>> logit_bias, int logprobs) {
            SamplingParams p{temperature,
                             top_k,
                             top_p,
                             min_p,
                             typical_p,
                             repetition_penalty,
                             presence_penalty,
                             frequency_penalty,
                             repeat_last_n,
                             std::move(logit_bias),
                             logprobs};
            new (self) Chooser(std::move(p), seed, vocab, prompt.data(), prompt.shape(0));
          },
          "vocab"_a, "seed"_a, "prompt"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a,
          "typical_p"_a, "repetition_penalty"_a, "presence_penalty"_a, "frequency_penalty"_a,
          "repeat_last_n"_a, "logit_bias"_a, "logprobs"_a)
      .def("accept", &Chooser::accept, "token"_a);

  nb::class_<Sampler>(m, "Sampler")
      .def(nb::init<std::shared_ptr<Pool>>(), "pool"_a)
      .def("choose", &Sampler::choose, "logits"_a, "rows"_a, "choosers"_a, "banned"_a, "masks"_a)
      .def("logprobs", &Sampler::logprobs, "logits"_a, "rows"_a, "tokens"_a, "top"_a);
}
