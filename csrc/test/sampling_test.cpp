// The sampler against a plain reading of its specification (a full sort, std::exp), on random
// rows, parameters, histories, bans and masks; then the corners: logits that are no numbers,
// tiny temperatures, nothing allowed, one chooser in several jobs. Chains of other steps, whose
// choices the Python tests compare, are run for what must hold of any of them.
#include "family/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>

#include "check.h"

using namespace gm;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kNone = -std::numeric_limits<double>::infinity();

struct Answer {
  SamplingParams params;
  uint64_t seed;
  std::vector<int32_t> prompt, history;
  uint64_t accepted = 0;
};

uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

using List = std::vector<std::pair<int32_t, double>>;  // id, weight

double total(const List& list) {
  double sum = 0;
  for (auto& c : list) sum += c.second;
  return sum;
}

// Keeps the shortest run from the start whose share of the whole is `share` or more.
void keep_run(List& list, double share) {
  const double all = total(list);
  double sum = 0;
  for (size_t i = 0; i < list.size(); i++) {
    sum += list[i].second / all;
    if (sum >= share) {
      list.resize(i + 1);
      return;
    }
  }
}

void keep_typical(List& list, double share) {
  const double all = total(list);
  double entropy = 0;
  for (auto& c : list)
    if (c.second > 0) entropy -= c.second / all * std::log(c.second / all);
  std::vector<size_t> order(list.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::fabs(-std::log(list[a].second / all) - entropy) <
           std::fabs(-std::log(list[b].second / all) - entropy);
  });
  List run;
  for (size_t i : order) run.push_back(list[i]);
  keep_run(run, share);
  order.resize(run.size());
  std::sort(order.begin(), order.end());
  List kept;
  for (size_t i : order) kept.push_back(list[i]);
  list = kept;
}

std::vector<bool> allowed(int vocab, const SamplingParams& p, const std::vector<int32_t>& banned,
                          const uint32_t* mask) {
  std::vector<bool> masked(size_t(vocab), true), out;
  for (int i = 0; mask && i < vocab; i++) masked[size_t(i)] = mask[i / 32] >> (i % 32) & 1;
  out = masked;
  for (int32_t id : banned) out[size_t(id)] = false;
  for (auto& bias : p.logit_bias)
    if (bias.second <= -100) out[size_t(bias.first)] = false;
  auto any = [](auto& v) { return std::find(v.begin(), v.end(), true) != v.end(); };
  if (any(out)) return out;
  return any(masked) ? masked : std::vector<bool>(size_t(vocab), true);
}

int32_t plain(const std::vector<float>& row, const Answer& a, const std::vector<int32_t>& banned,
              const uint32_t* mask) {
  const SamplingParams& p = a.params;
  std::vector<double> logits(row.begin(), row.end());
  for (auto& bias : p.logit_bias)
    if (bias.second > -100) logits[size_t(bias.first)] += bias.second;
  std::vector<int> counts(row.size(), 0);
  size_t first = 0, last = size_t(p.repeat_last_n);
  if (p.repeat_last_n >= 0 && a.history.size() > last) first = a.history.size() - last;
  for (size_t i = first; i < a.history.size(); i++) counts[size_t(a.history[i])]++;
  for (size_t i = 0; i < row.size(); i++)
    if (counts[i]) {
      logits[i] =
          logits[i] > 0 ? logits[i] / p.repetition_penalty : logits[i] * p.repetition_penalty;
      logits[i] -= counts[i] * p.frequency_penalty + p.presence_penalty;
    }
  auto may = allowed(int(row.size()), p, banned, mask);
  List list;
  for (size_t i = 0; i < row.size(); i++)
    if (may[i]) list.emplace_back(int32_t(i), logits[i]);
  std::stable_sort(list.begin(), list.end(), [](auto& x, auto& y) { return x.second > y.second; });
  const double largest = list[0].second;
  if (p.temperature == 0 || largest == kNone) return list[0].first;
  for (auto& c : list) c.second = std::exp((c.second - largest) / p.temperature);
  if (p.top_k > 0 && size_t(p.top_k) < list.size()) list.resize(size_t(p.top_k));
  if (p.typical_p < 1) keep_typical(list, p.typical_p);
  if (p.top_p < 1) keep_run(list, p.top_p);
  const double least = std::min(p.min_p, 1.0) * list[0].second;
  if (p.min_p > 0) std::erase_if(list, [&](auto& c) { return c.second < least; });
  std::sort(list.begin(), list.end());  // the draw goes by id
  const double u =
      double(mix(mix(a.seed) + (a.accepted + 1) * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
  const double goal = u * total(list);
  double sum = 0;
  for (auto& c : list)
    if ((sum += c.second) > goal) return c.first;
  return list.back().first;
}

// ------------------------------------------------------------------ random cases

template <class T>
T one_of(test::Random& random, std::initializer_list<T> values) {
  return values.begin()[random.below(int(values.size()))];
}

// Shares are odd numbers: where many logits tie, a round share falls on a border, and rounding
// decides.
Answer random_answer(test::Random& random, int vocab) {
  Answer a;
  SamplingParams& p = a.params;
  p.temperature = one_of(random, {0.0, 1e-12, 1e-4, 0.3, 0.7, 1.0, 1.0, 1.5, 5.0, 50.0});
  p.top_k = one_of(random, {0, 0, 1, 2, 40, 500, 1 << 30});
  p.top_p = one_of(random, {1.0, 1.0, 0.0, 1e-4, 0.5123, 0.9041, 0.999});
  p.min_p = one_of(random, {0.0, 0.0, 0.05, 0.3, 1.0, 2.0});
  p.typical_p = one_of(random, {1.0, 1.0, 1.0, 0.2137, 0.9113, 0.0});
  p.repetition_penalty = one_of(random, {1.0, 1.0, 1.3, 0.8});
  p.presence_penalty = one_of(random, {0.0, 0.0, 0.7, -0.7});
  p.frequency_penalty = one_of(random, {0.0, 0.0, 0.4});
  p.repeat_last_n = one_of(random, {-1, 0, 1, 20});
  for (int n = random.below(3) * random.below(6); n > 0; n--)
    p.logit_bias.emplace_back(random.below(vocab),
                              one_of(random, {-100.0, -1e9, 2.5, 0.1, 12.0, -99.0}));
  a.seed = random.next();
  for (int n = random.below(60); n > 0; n--) a.prompt.push_back(random.below(vocab));
  a.history = a.prompt;
  return a;
}

std::vector<float> random_row(test::Random& random, int vocab) {
  std::vector<float> row(static_cast<size_t>(vocab));
  const float spread = one_of(random, {0.1f, 1.0f, 3.0f, 20.0f});
  const bool coarse = random.below(4) == 0, holes = random.below(5) == 0;
  for (float& x : row) {
    x = random.normal() * spread;
    if (coarse) x = std::round(x);  // many ties
    if (holes && random.below(3) == 0) x = -kInf;
  }
  return row;
}

void random_choices(int vocab, int rounds, uint64_t seed) {
  test::Random random(seed);
  SamplingSpace space;
  for (int round = 0; round < rounds; round++) {
    Answer a = random_answer(random, vocab);
    Chooser chooser(a.params, a.seed, vocab, a.prompt.data(), a.prompt.size());
    for (int step = 0; step < 4; step++) {
      auto row = random_row(random, vocab);
      std::vector<int32_t> banned;
      for (int n = random.below(4) == 0 ? random.below(vocab) : 0; n > 0; n--)
        banned.push_back(random.below(vocab));
      std::vector<uint32_t> mask(size_t(vocab + 31) / 32);
      const uint32_t density = one_of(random, {0u, ~0u, 0x11u, 1u});
      for (auto& word : mask) word = random.bits() & (density == 1 ? random.bits() & 1 : density);
      const uint32_t* bits = random.below(3) == 0 ? mask.data() : nullptr;
      const int32_t want = plain(row, a, banned, bits);
      const int32_t got =
          choose(row.data(), chooser, banned.data(), banned.size(), bits, space).token;
      const SamplingParams& p = a.params;
      test::expect(got == want,
                   "vocab %d round %d step %d: %d, wanted %d (t %g k %d p %g min %g typical %g)",
                   vocab, round, step, got, want, p.temperature, p.top_k, p.top_p, p.min_p,
                   p.typical_p);
      chooser.accept(want);
      a.history.push_back(want);
      a.accepted++;
    }
  }
}

// Chains of any steps: what is chosen is allowed, the same again, and told as it was drawn.
void chains(int vocab, int rounds, uint64_t seed) {
  test::Random random(seed);
  SamplingSpace space, other;
  for (int round = 0; round < rounds; round++) {
    Answer a = random_answer(random, vocab);
    SamplingParams& p = a.params;
    p.plain = false;
    for (int n = random.below(8); n > 0; n--) p.chain.push_back(Step(random.below(11)));
    if (random.below(3) == 0) p.chain.push_back(Step::adaptive);
    p.mirostat = random.below(3);
    p.logprobs = random.below(5);
    p.post_sampling = true;
    p.penalise_prompt = random.below(2) == 0;
    p.top_n_sigma = one_of(random, {0.5, 2.0});
    p.xtc_probability = one_of(random, {0.5, 1.0});
    p.xtc_threshold = one_of(random, {0.0, 0.01, 0.2});
    p.dynatemp_range = one_of(random, {0.0, 0.5, 5.0});
    p.adaptive_target = one_of(random, {-1.0, 0.0, 0.3, 1.0});
    p.min_keep = one_of(random, {0, 1, 5, 1 << 30});
    p.dry_multiplier = 1;
    p.dry_allowed_length = random.below(3);
    p.dry_penalty_last_n = one_of(random, {-1, 4, 64});
    p.dry_breakers = {{}, {0}, {1, 0}, {random.below(vocab), 0, 0}};
    p.bad_words = {{}, {random.below(vocab)}, {0, 0}};
    p.lists_allowed = random.below(4) == 0;
    for (int n = random.below(5); n > 0; n--) p.allowed.push_back(random.below(vocab));
    for (int32_t& id : a.prompt) id %= 1 + random.below(5);
    Chooser one(p, a.seed, vocab, a.prompt.data(), a.prompt.size());
    Chooser two(p, a.seed, vocab, a.prompt.data(), a.prompt.size());
    for (int step = 0; step < 4; step++) {
      auto row = random_row(random, vocab);
      const Choice got = choose(row.data(), one, nullptr, 0, nullptr, space);
      const Choice same = choose(row.data(), two, nullptr, 0, nullptr, other);
      test::expect(got.token >= 0 && got.token < vocab && got.token == same.token,
                   "vocab %d round %d: %d and %d", vocab, round, got.token, same.token);
      const bool listed =
          p.allowed.empty() || !p.lists_allowed ||
          std::find(p.allowed.begin(), p.allowed.end(), got.token) != p.allowed.end();
      test::expect(listed, "%d is not in the list", got.token);
      double sum = 0;
      for (auto& entry : got.top) sum += std::exp(entry.second);
      test::expect(sum < 1 + 1e-9 && got.logprob < 1e-9 && got.top.size() <= size_t(p.logprobs),
                   "probabilities add up to %g", sum);
      one.accept(got.token);
      two.accept(got.token);
    }
  }
}

// DRY by looking at every place, against the linear algorithm.
void repetitions() {
  test::Random random(3);
  for (int round = 0; round < 2000; round++) {
    SamplingParams p;
    p.dry_multiplier = 0.5;
    p.dry_base = 1.5;
    p.dry_allowed_length = random.below(4);
    p.dry_penalty_last_n = one_of(random, {-1, 3, 20});
    p.dry_breakers = {{2}, {0, 1, 1}};
    if (random.below(2)) p.dry_breakers.clear();
    std::vector<int32_t> history;
    const int kinds = 1 + random.below(4);
    for (int n = random.below(40); n > 0; n--) history.push_back(random.below(kinds));
    Chooser chooser(p, 1, 4, history.data(), history.size());
    const size_t last = p.dry_penalty_last_n < 0 ? history.size() : size_t(p.dry_penalty_last_n);
    if (history.size() > last) history.erase(history.begin(), history.end() - ptrdiff_t(last));
    const int n = int(history.size());
    int bound = n;
    for (int start = n - 1; start >= 0 && bound == n && !p.dry_breakers.empty(); start--) {
      if (history[size_t(start)] == 2) bound = n - start - 1;
      if (start + 3 <= n && history[size_t(start)] == 0 && history[size_t(start + 1)] == 1 &&
          history[size_t(start + 2)] == 1)
        bound = n - start - 3;
    }
    std::vector<int> longest(4, -1);
    for (int place = 1; place < n; place++) {
      int run = 0;
      while (run < place && run < bound &&
             history[size_t(place - 1 - run)] == history[size_t(n - 1 - run)])
        run++;
      int& most = longest[size_t(history[size_t(place)])];
      if (run >= p.dry_allowed_length) most = std::max(most, run);
    }
    if (!p.dry_breakers.empty()) longest[2] = -1;
    std::vector<double> want(4, 0), got(4, 0);
    for (size_t id = 0; id < 4; id++)
      if (longest[id] >= 0 && n > p.dry_allowed_length && bound >= p.dry_allowed_length)
        want[id] = 0.5 * std::pow(1.5, longest[id] - p.dry_allowed_length);
    for (auto [id, loss] : chooser.dry_losses()) got[size_t(id)] = loss;
    for (size_t id = 0; id < 4; id++)
      test::expect(std::fabs(want[id] - got[id]) <= 1e-9 * want[id],
                   "round %d token %d: %g, wanted %g", round, int(id), got[id], want[id]);
  }
}

void logprobs() {
  test::Random random(5);
  SamplingSpace space;
  for (int round = 0; round < 60; round++) {
    const int vocab = one_of(random, {1, 7, 300, 5000});
    auto row = random_row(random, vocab);
    row[size_t(random.below(vocab))] = 1.5f;
    const int top = one_of(random, {0, 1, 5, 20, 6000}), token = random.below(vocab);
    Choice c = raw_logprob(row.data(), vocab, token, top, space);
    double largest = *std::max_element(row.begin(), row.end()), sum = 0;
    for (float x : row) sum += std::exp(double(x) - largest);
    auto of = [&](int id) { return double(row[size_t(id)]) - largest - std::log(sum); };
    test::expect(
        c.token == token && (std::isinf(of(token)) ? c.logprob == of(token)
                                                   : std::fabs(c.logprob - of(token)) < 1e-12),
        "logprob %.17g, wanted %.17g", c.logprob, of(token));
    std::vector<int> ids;
    for (int i = 0; i < vocab; i++)
      if (row[size_t(i)] > -kInf) ids.push_back(i);
    std::stable_sort(ids.begin(), ids.end(),
                     [&](int a, int b) { return row[size_t(a)] > row[size_t(b)]; });
    if (ids.size() > size_t(top)) ids.resize(size_t(top));
    bool same = ids.size() == c.top.size();
    for (size_t i = 0; same && i < ids.size(); i++)
      same = c.top[i].first == ids[i] && std::fabs(c.top[i].second - of(ids[i])) < 1e-12;
    test::expect(same, "the %d best of %d differ", top, vocab);
  }
}

void no_numbers() {
  SamplingSpace space;
  for (int vocab : {1, 5, 16, 700, 4097})
    for (double temperature : {0.0, 1.0})
      for (float bad : {std::numeric_limits<float>::quiet_NaN(), kInf})
        for (int at : {0, vocab / 2, vocab - 1}) {
          SamplingParams p;
          p.temperature = temperature;
          p.logprobs = 3;
          Chooser chooser(p, 1, vocab, nullptr, 0);
          std::vector<float> row(size_t(vocab), 0.5f);
          row[size_t(at)] = bad;
          test::expect(choose(row.data(), chooser, nullptr, 0, nullptr, space).token == -1,
                       "%g at %d of %d was not seen", double(bad), at, vocab);
          Choice c = raw_logprob(row.data(), vocab, 0, 3, space);
          test::expect(std::isnan(c.logprob) && c.top.empty(), "a logprob of no number");
        }
  std::vector<float> low(40, -kInf), lowest(40, -std::numeric_limits<float>::max());
  Chooser chooser({}, 1, 40, nullptr, 0);
  const int32_t banned[] = {1, 0};
  test::expect(choose(low.data(), chooser, banned, 2, nullptr, space).token == 2,
               "all -infinity: the first that is allowed");
  Choice c = choose(lowest.data(), chooser, nullptr, 0, nullptr, space);
  test::expect(c.token >= 0 && c.token < 40, "equal huge logits: %d", c.token);
}

void ids_outside() {
  for (int32_t id : {-1, 10, 1 << 30})
    for (int where = 0; where < 3; where++) {
      SamplingParams p;
      if (where == 0) p.logit_bias = {{id, 1.0}};
      if (where == 1) p.lists_allowed = true, p.allowed = {id};
      if (where == 2) p.bad_words = {{1, id}};
      bool threw = false;
      try {
        Chooser chooser(p, 1, 10, nullptr, 0);
      } catch (const std::out_of_range&) {
        threw = true;
      }
      test::expect(threw, "token %d of 10 was taken", id);
    }
}

// Over many seeds a token is drawn as often as its probability says.
void frequencies() {
  const float row[] = {0.0f, 1.0f, 2.0f};
  const double e = std::exp(1.0), sum = 1 + e + e * e;
  int counts[3] = {};
  SamplingSpace space;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; i++) {
    Chooser chooser({}, uint64_t(i), 3, nullptr, 0);
    counts[choose(row, chooser, nullptr, 0, nullptr, space).token]++;
  }
  for (int i = 0; i < 3; i++) {
    const double p = std::pow(e, i) / sum, error = std::fabs(counts[i] / double(kDraws) - p);
    test::expect(error < 5 * std::sqrt(p * (1 - p) / kDraws), "token %d: %d draws", i, counts[i]);
  }
}

void many(int workers) {
  test::Random random(9);
  const int vocab = 3001, rows = 24;
  std::vector<std::vector<float>> logits;
  std::vector<Answer> answers;
  std::vector<std::unique_ptr<Chooser>> choosers;
  for (int i = 0; i < rows; i++) logits.push_back(random_row(random, vocab));
  for (int i = 0; i < rows / 2; i++) {
    Answer a = random_answer(random, vocab);
    choosers.push_back(
        std::make_unique<Chooser>(a.params, a.seed, vocab, a.prompt.data(), a.prompt.size()));
    answers.push_back(a);
  }
  std::vector<ChooseJob> jobs;
  for (int i = 0; i < rows; i++)  // two rows for each chooser
    jobs.push_back(
        {logits[size_t(i)].data(), choosers[size_t(i / 2)].get(), nullptr, 0, nullptr, Choice{}});
  Pool pool(workers);
  std::vector<SamplingSpace> spaces(static_cast<size_t>(workers));
  pool.each(rows, 1, [&](int64_t begin, int64_t end, const Worker& w) {
    choose_many(jobs.data(), rows, int(begin), int(end), spaces[size_t(w.id)]);
  });
  for (int i = 0; i < rows; i++) {
    Answer& a = answers[size_t(i / 2)];
    const int32_t want = plain(logits[size_t(i)], a, {}, nullptr);
    test::expect(jobs[size_t(i)].result.token == want, "job %d: %d, wanted %d", i,
                 jobs[size_t(i)].result.token, want);
    a.history.push_back(want);
    a.accepted++;
  }
  std::vector<LogprobJob> asked;
  for (int i = 0; i < rows; i++) asked.push_back({logits[size_t(i)].data(), vocab, i, 2, Choice{}});
  pool.each(rows, 1, [&](int64_t begin, int64_t end, const Worker& w) {
    logprob_many(asked.data(), int(begin), int(end), spaces[size_t(w.id)]);
  });
  for (int i = 0; i < rows; i++) {
    Choice c = raw_logprob(logits[size_t(i)].data(), vocab, i, 2, spaces[0]);
    test::expect(c.logprob == asked[size_t(i)].result.logprob && asked[size_t(i)].result.token == i,
                 "logprob job %d", i);
  }
}

}  // namespace

int main(int argc, char** argv) {
  test::arguments(argc, argv);
  const int rounds = test::quick ? 100 : 600;
  for (int vocab : {1, 2, 33, 300, 1100})
    test::run("choices equal the specification",
              [&] { random_choices(vocab, rounds, uint64_t(vocab)); });
  test::run("choices, large vocabulary", [&] { random_choices(20011, rounds / 6, 3); });
  for (int vocab : {1, 2, 33, 300, 3000})
    test::run("chains of any steps", [&] { chains(vocab, rounds / 2, uint64_t(vocab)); });
  test::run("repetitions", repetitions);
  test::run("logprobs", logprobs);
  test::run("logits that are no numbers", no_numbers);
  test::run("ids outside the vocabulary", ids_outside);
  test::run("frequencies", frequencies);
  test::run("many rows, one worker", [] { many(1); });
  test::run("many rows, three workers", [] { many(3); });
  return test::result();
}
