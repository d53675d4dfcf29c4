// Attention against a float64 reference, and against itself: a row's bits are the same alone,
// in a batch, in a prompt cut anyhow, with any number of workers. The cache is poisoned: what
// was never written, or was let go by the window, is NaN.
#include "family/attention.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "family/attention_pairs.h"

using namespace gm;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  const char* name;
  int heads, kv_heads, head_dim, window;
  float softcap;
  bool sinks;
  KvType type;
  std::vector<int> lengths;
  float spread;           // of the queries: large ones make sharp softmaxes
  bool overflow = false;  // some values turn to infinity in the cache
  double tolerance = 2e-5;
};

using Rng = std::mt19937;

int pick(Rng& rng, int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng); }

// Where bfloat16 is multiplied, queries and weights are rounded to it; the reference below does
// it to the queries, and the weights' share of the error is at most 2^-9 of each value.
constexpr double kWeightRounding = 4e-3;
bool in_pairs(const Case& c) { return attend::paired(c.type, c.head_dim); }

float rounded(float x, KvType type) {
  if (type == KvType::f16) return half_to_float(float_to_half(x));
  if (type == KvType::bf16) return bf16_to_float(float_to_bf16(x));
  return x;
}

// One sequence: merged rows of q, k, v as a model would have them, and the result.
struct Text {
  int length;
  std::vector<float> rows, out;
};

struct World {
  Case c;
  int q_width, kv_width, row_width, out_stride;
  std::vector<Text> texts;
  std::vector<float> sinks;
  float scale;

  World(const Case& given, Rng& rng) : c(given) {
    q_width = c.heads * c.head_dim;
    kv_width = c.kv_heads * c.head_dim;
    row_width = q_width + 2 * kv_width + 3;
    out_stride = q_width + 5;
    scale = 1.0f / std::sqrt(float(c.head_dim));
    std::normal_distribution<float> normal;
    for (int length : c.lengths) {
      Text text{length, std::vector<float>(size_t(length) * size_t(row_width)), {}};
      for (size_t i = 0; i < text.rows.size(); i++) {
        bool query = i % size_t(row_width) < size_t(q_width);
        text.rows[i] = normal(rng) * (query ? c.spread : 1.0f);
      }
      if (c.overflow)
        text.rows[size_t(length / 2) * size_t(row_width) + size_t(q_width + kv_width)] =
            c.type == KvType::bf16 ? 3.4e38f : 1e6f;  // infinite in the cache's type
      texts.push_back(text);
    }
    for (int h = 0; h < c.heads; h++) sinks.push_back(normal(rng));
  }
  const float* q(int s, int t, int head) const {
    return &texts[size_t(s)].rows[size_t(t) * size_t(row_width) + size_t(head * c.head_dim)];
  }
  const float* k(int s, int t, int kv_head) const { return q(s, t, c.heads + kv_head); }
  const float* v(int s, int t, int kv_head) const {
    return q(s, t, c.heads + c.kv_heads + kv_head);
  }
};

// The blocks of a layer between two others, handed out in random order.
class Cache {
 public:
  Cache(const World& world, Rng& rng) : world_(world) {
    size_t elements = 2 * size_t(world.kv_width) * kBlockTokens;
    layer_bytes_ = elements * kv_element_bytes(world.c.type);
    int count = 3;
    for (int length : world.c.lengths) count += (length + kBlockTokens - 1) / kBlockTokens;
    for (int i = 0; i < count; i++) {
      blocks_.push_back(std::make_unique<uint8_t[]>(3 * layer_bytes_));
      pointers_.push_back(blocks_.back().get());
      poison(i);
      free_.push_back(i);
    }
    std::shuffle(free_.begin(), free_.end(), rng);
  }
  KvLayer layer() const { return {pointers_.data(), layer_bytes_, world_.c.type}; }
  int take() {
    int id = free_.back();
    free_.pop_back();
    return id;
  }
  void give(int id) {
    poison(id);
    free_.push_back(id);
  }

 private:
  void poison(int id) {
    size_t n = 3 * layer_bytes_ / kv_element_bytes(world_.c.type);
    for (size_t i = 0; i < n; i++)
      if (world_.c.type == KvType::f32)
        std::memcpy(pointers_[size_t(id)] + 4 * i, &kNan, 4);
      else
        std::memset(pointers_[size_t(id)] + 2 * i, 0x7f, 2);  // NaN in f16 and in bf16
  }
  const World& world_;
  size_t layer_bytes_;
  std::vector<std::unique_ptr<uint8_t[]>> blocks_;
  std::vector<uint8_t*> pointers_;
  std::vector<int> free_;
};

struct Step {
  std::vector<int> sequences, rows;
};

// Plays steps over a cache; the results end in each text's `out`.
class Player {
 public:
  Player(World& world, Rng& rng, int workers)
      : world_(world), rng_(rng), cache_(world, rng), pool_(workers) {
    int longest = 0;
    for (auto& text : world.texts) {
      text.out.assign(size_t(text.length) * size_t(world.q_width), kNan);
      longest = std::max(longest, text.length);
    }
    table_width_ = longest / kBlockTokens + 3;
    tables_.assign(world.texts.size() * size_t(table_width_), -1);
    past_.assign(world.texts.size(), 0);
  }
  int past(int s) const { return past_[size_t(s)]; }
  bool play(const Step& step);

 private:
  void turn_blocks(int s, int rows);
  bool take_results(const std::vector<float>& out, const std::vector<int32_t>& spans,
                    const Step& step);
  World& world_;
  Rng& rng_;
  Cache cache_;
  Pool pool_;
  int table_width_;
  std::vector<int32_t> tables_;
  std::vector<int> past_;
};

// Blocks that the window has let go of become -1, new tokens get blocks.
void Player::turn_blocks(int s, int rows) {
  int32_t* table = &tables_[size_t(s) * size_t(table_width_)];
  int past = past_[size_t(s)], window = world_.c.window;
  for (int b = 0; window && (b + 1) * kBlockTokens <= past + 1 - window; b++)
    if (table[b] >= 0) {
      cache_.give(table[b]);
      table[b] = -1;
    }
  for (int b = past / kBlockTokens; b <= (past + rows - 1) / kBlockTokens; b++)
    if (table[b] < 0) table[b] = cache_.take();
}

bool Player::play(const Step& step) {
  const World& w = world_;
  std::vector<int32_t> spans, table;
  std::vector<float> rows;
  int total = pick(rng_, 0, 2);  // unused rows before the first
  rows.resize(size_t(total) * size_t(w.row_width), kNan);
  for (size_t i = 0; i < step.sequences.size(); i++) {
    int s = step.sequences[i], n = step.rows[i], past = past_[size_t(s)];
    turn_blocks(s, n);
    spans.insert(spans.end(), {total, n, past});
    total += n;
    auto first = w.texts[size_t(s)].rows.begin() + ptrdiff_t(past) * w.row_width;
    rows.insert(rows.end(), first, first + ptrdiff_t(n) * w.row_width);
  }
  for (int s : step.sequences) {
    auto first = tables_.begin() + ptrdiff_t(s) * table_width_;
    table.insert(table.end(), first, first + table_width_);
  }
  std::vector<float> out(size_t(total) * size_t(w.out_stride), kNan);
  AttentionArgs args{};
  args.q = rows.data();
  args.k = rows.data() + w.q_width;
  args.v = args.k + w.kv_width;
  args.q_stride = args.k_stride = args.v_stride = w.row_width;
  args.out = out.data();
  args.out_stride = w.out_stride;
  args.heads = w.c.heads;
  args.kv_heads = w.c.kv_heads;
  args.head_dim = w.c.head_dim;
  args.window = w.c.window;
  args.scale = w.scale;
  args.softcap = w.c.softcap;
  args.sinks = w.c.sinks ? w.sinks.data() : nullptr;
  args.spans = spans.data();
  args.sequences = int(step.sequences.size());
  args.table = table.data();
  args.table_width = table_width_;
  args.kv = cache_.layer();
  AttentionPlan plan;
  plan.make(args, pool_.threads());
  std::vector<uint8_t> scratch(plan.scratch(), 0xff);
  for (auto phase : {AttentionPhase::store, AttentionPhase::attend, AttentionPhase::merge})
    pool_.each(plan.units(phase), 1, [&](int64_t begin, int64_t end, const Worker& worker) {
      attention(args, plan, phase, int(begin), int(end), worker, scratch.data());
    });
  return take_results(out, spans, step);
}

bool Player::take_results(const std::vector<float>& out, const std::vector<int32_t>& spans,
                          const Step& step) {
  const size_t stride = size_t(world_.out_stride), width = size_t(world_.q_width);
  for (size_t i = 0; i < step.sequences.size(); i++) {
    size_t s = size_t(step.sequences[i]), n = size_t(step.rows[i]);
    for (size_t r = 0; r < n; r++) {
      const float* row = &out[(size_t(spans[3 * i]) + r) * stride];
      std::memcpy(&world_.texts[s].out[(size_t(past_[s]) + r) * width], row, 4 * width);
      for (size_t j = width; j < stride; j++)
        if (!std::isnan(row[j])) return false;  // written past the row
    }
    past_[s] += int(n);
  }
  return true;
}

// The largest error of a few rows against float64, relative to the size of values (about 1).
double error_of(const World& w, Rng& rng, int checks) {
  double worst = 0;
  const Case& c = w.c;
  for (int n = 0; n < checks; n++) {
    int s = pick(rng, 0, int(w.texts.size()) - 1), length = w.texts[size_t(s)].length;
    int t = n < 2 ? (n ? length - 1 : 0) : pick(rng, 0, length - 1);
    int head = pick(rng, 0, c.heads - 1), kv_head = head / (c.heads / c.kv_heads);
    int first = c.window ? std::max(0, t + 1 - c.window) : 0;
    std::vector<double> score, expected(size_t(c.head_dim), 0.0);
    double top = c.sinks ? double(w.sinks[size_t(head)]) : -1e300, sum = 0;
    for (int u = first; u <= t; u++) {
      double dot = 0;
      for (int d = 0; d < c.head_dim; d++) {
        float q = w.q(s, t, head)[d] * w.scale;
        if (in_pairs(c)) q = rounded(q, KvType::bf16);
        dot += double(q) * double(rounded(w.k(s, u, kv_head)[d], c.type));
      }
      if (c.softcap > 0) dot = double(c.softcap) * std::tanh(dot / double(c.softcap));
      score.push_back(dot);
      top = std::max(top, dot);
    }
    if (c.sinks) sum = std::exp(double(w.sinks[size_t(head)]) - top);
    for (int u = first; u <= t; u++) {
      double p = std::exp(score[size_t(u - first)] - top);
      sum += p;
      for (int d = 0; d < c.head_dim; d++)
        expected[size_t(d)] += p * double(rounded(w.v(s, u, kv_head)[d], c.type));
    }
    const float* got = &w.texts[size_t(s)].out[size_t(t) * size_t(w.q_width)];
    for (int d = 0; d < c.head_dim; d++) {
      double want = expected[size_t(d)] / sum, x = double(got[head * c.head_dim + d]);
      if (std::isfinite(want)) {
        double error = std::fabs(x - want);
        if (!(error <= worst)) worst = error;  // a NaN stays
      } else if (std::isfinite(x)) {
        return kNan;
      }
    }
  }
  return worst;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); i++)
    if (std::memcmp(&a[i], &b[i], 4) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  return a.size() == b.size();
}

// Each sequence whole and alone, one worker: what all else must equal.
bool play_alone(World& world, Rng& rng) {
  Player player(world, rng, 1);
  for (int s = 0; s < int(world.texts.size()); s++)
    if (!player.play({{s}, {world.texts[size_t(s)].length}})) return false;
  return true;
}

// All sequences in one batch, each by up to `most` rows a step, some waiting now and then.
bool play_crowd(World& world, Rng& rng, int workers, int most) {
  Player player(world, rng, workers);
  for (;;) {
    Step step;
    bool left = false;
    for (int s = 0; s < int(world.texts.size()); s++) {
      int rest = world.texts[size_t(s)].length - player.past(s);
      left |= rest > 0;
      if (rest == 0 || pick(rng, 0, 3) == 0) continue;
      step.sequences.push_back(s);
      step.rows.push_back(pick(rng, 1, std::min(rest, most)));
    }
    if (!left) return true;
    if (!player.play(step)) return false;
  }
}

void check(const Case& c, Rng& rng) {
  test::run(c.name, [&] {
    World world(c, rng);
    test::expect(play_alone(world, rng), "written outside the rows");
    std::vector<std::vector<float>> alone;
    for (auto& text : world.texts) alone.push_back(text.out);
    int longest = *std::max_element(c.lengths.begin(), c.lengths.end());
    double error = error_of(world, rng, 40);
    double tolerance = in_pairs(c) ? std::max(c.tolerance, kWeightRounding) : c.tolerance;
    test::expect(error <= tolerance, "error %.1e", error);
    struct {
      int workers, most;
    } crowds[] = {{1, 1 << 20}, {2, 1 << 20}, {5, 300}, {2, 40}, {1, 1}, {2, 1}, {5, 3}};
    for (auto crowd : crowds) {
      // Quick: not a step for every token, and few steps for long texts.
      if (test::quick && crowd.most < (longest > 200 ? 40 : 3)) continue;
      bool same = play_crowd(world, rng, crowd.workers, crowd.most);
      for (size_t s = 0; same && s < alone.size(); s++)
        same = same_bits(alone[s], world.texts[s].out);
      test::expect(same, "%d workers, at most %d rows: the bits differ", crowd.workers, crowd.most);
    }
  });
}

Case random_case(Rng& rng) {
  Case c{};
  c.name = "random";
  int dims[] = {4, 8, 16, 24, 64, 72, 80, 96, 100};
  c.kv_heads = pick(rng, 1, 3);
  c.heads = c.kv_heads * pick(rng, 1, 9);
  c.head_dim = dims[pick(rng, 0, 8)];
  c.window = pick(rng, 0, 1) ? pick(rng, 1, 90) : 0;
  c.softcap = pick(rng, 0, 2) ? 0.0f : 5.0f;
  c.sinks = pick(rng, 0, 2) == 0;
  c.type = static_cast<KvType>(pick(rng, 0, 2));
  for (int n = pick(rng, 1, 3); n > 0; n--) c.lengths.push_back(pick(rng, 1, 120));
  c.spread = pick(rng, 0, 1) ? 1.0f : 6.0f;
  return c;
}

}  // namespace

int main(int argc, char** argv) {
  test::arguments(argc, argv);
  Rng rng(1);
  using enum KvType;
  const Case cases[] = {
      {"llama-like", 9, 3, 64, 0, 0, false, f16, {300, 1, 33}, 1},
      {"qwen3-like", 4, 2, 128, 0, 0, false, f16, {270, 64}, 2},
      {"qwen2.5-like, groups of 7", 14, 2, 64, 0, 0, false, f16, {70, 40}, 1},
      {"gemma-like, window, one kv head", 4, 1, 256, 100, 50, false, f16, {330, 31}, 1},
      {"window over chunks, sinks", 8, 2, 64, 300, 0, true, bf16, {620, 255}, 1},
      {"window of one", 2, 2, 32, 1, 0, true, f32, {70}, 1},
      {"window of a block", 2, 1, 80, 32, 0, false, f16, {290, 32}, 1},
      {"wide head", 2, 1, 512, 0, 30, false, f32, {140}, 1},
      {"group of 16", 16, 1, 96, 0, 0, false, bf16, {90, 5}, 1},
      {"sharp", 2, 1, 64, 0, 0, false, f32, {280}, 60, false, 2e-4},
      {"overflowing values", 4, 2, 64, 0, 0, false, f16, {90, 61}, 1, true},
      {"overflowing values, window", 4, 2, 64, 20, 0, false, f16, {90, 61}, 1, true},
      {"bf16, qwen3-like", 4, 2, 128, 0, 0, false, bf16, {270, 64}, 2},
      {"bf16, odd window", 14, 2, 64, 75, 0, false, bf16, {170, 40}, 1},
      {"bf16, columns left over", 3, 1, 72, 33, 20, true, bf16, {99, 300}, 1},
      {"bf16, overflowing values", 4, 2, 64, 20, 0, false, bf16, {90, 61}, 1, true},
      {"long context", 2, 1, 16, 0, 0, false, f16, {1100}, 1},
  };
  for (Case c : cases) {
    if (test::quick && c.heads * c.head_dim > 600) continue;
    check(c, rng);
  }
  for (int i = 0; i < (test::quick ? 4 : 12); i++) check(random_case(rng), rng);
  return test::result();
}
