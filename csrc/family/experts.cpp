#include "experts.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace gm::inline GM_ISA {
namespace {

using isa::F;
using isa::kLanes;

// The best of n that is not taken, the first of equal ones; NaN is never better.
int best_of(const float* wish, const uint8_t* taken, int n) {
  int best = -1;
  for (int i = 0; i < n; i++)
    if (!taken[i] && (best < 0 || wish[i] > wish[best])) best = i;
  return best;
}

void scores_of(const Routing& r, const float* logits, float* scores) {
  if (r.sigmoid) {
    for (int e = 0; e < r.experts; e++) scores[e] = 1.0f / (1.0f + std::exp(-logits[e]));
    return;
  }
  const float top = *std::max_element(logits, logits + r.experts);
  float sum = 0.0f;
  for (int e = 0; e < r.experts; e++) sum += scores[e] = std::exp(logits[e] - top);
  for (int e = 0; e < r.experts; e++) scores[e] /= sum;
}

// Marks the experts of all groups but the best ones.
void close_groups(const Routing& r, const float* wish, uint8_t* taken) {
  const int size = r.experts / r.groups;
  std::vector<float> worth(static_cast<size_t>(r.groups), 0.0f);
  std::vector<uint8_t> open(static_cast<size_t>(r.groups), 0);
  for (int g = 0; g < r.groups; g++)
    for (int i = 0; i < r.group_best; i++) {
      const int best = best_of(wish + g * size, taken + g * size, size);
      worth[size_t(g)] += wish[g * size + best];
      taken[g * size + best] = 1;
    }
  for (int i = 0; i < r.groups_used; i++)
    open[size_t(best_of(worth.data(), open.data(), r.groups))] = 1;
  for (int e = 0; e < r.experts; e++) taken[e] = !open[size_t(e / size)];
}

}  // namespace

void route_row(const Routing& r, const float* logits, const float* selection,
               const float* result_scale, int32_t* chosen, float* weights) {
  thread_local std::vector<float> scores, wish;
  thread_local std::vector<uint8_t> taken;
  scores.resize(size_t(r.experts));
  wish.resize(size_t(r.experts));
  taken.assign(size_t(r.experts), 0);
  scores_of(r, logits, scores.data());
  for (int e = 0; e < r.experts; e++)
    wish[size_t(e)] = scores[size_t(e)] + (selection ? selection[e] : 0.0f);
  // Without a bias the logits tell apart what scores round to the same.
  const bool plain = !selection && r.groups == 1;
  if (r.groups > 1) close_groups(r, wish.data(), taken.data());
  float sum = 1e-20f;
  for (int i = 0; i < r.used; i++) {
    const int e = best_of(plain ? logits : wish.data(), taken.data(), r.experts);
    taken[size_t(e)] = 1;
    chosen[i] = e;
    weights[i] = scores[size_t(e)];
    sum += weights[i];
  }
  for (int i = 0; i < r.used; i++) {
    if (r.normalised) weights[i] /= sum;
    weights[i] *= r.scale;
    if (result_scale) weights[i] *= result_scale[chosen[i]];
  }
}

void sort_places(const Routing& r, int rows, const Places& p) {
  const int choices = rows * r.used;
  std::fill(p.start, p.start + r.experts + 1, 0);
  for (int i = 0; i < choices; i++) p.start[p.chosen[i] + 1]++;
  *p.count = 0;
  for (int e = 0; e < r.experts; e++) {
    if (p.start[e + 1]) p.active[(*p.count)++] = e;
    p.start[e + 1] += p.start[e];
  }
  // Filling moves each start to the next expert's; then all are moved back.
  for (int i = 0; i < choices; i++) {
    const int e = p.chosen[i], at = p.start[e]++;
    p.place[i] = at;
    p.choice[at] = i;
    p.expert[at] = e;
  }
  for (int e = r.experts; e > 0; e--) p.start[e] = p.start[e - 1];
  p.start[0] = 0;
}

void gate_row(Gate gate, float limit, const float* x, int half, float* out) {
  if (gate != Gate::clamped) return glu(Activation(int(gate)), x, x + half, half, out);
  const F top = isa::set1(limit), bottom = isa::set1(-limit), one = isa::set1(1.0f);
  const float* up = x + half;
  for (int i = 0; i < half; i += kLanes) {
    const int n = std::min(kLanes, half - i);
    const F g = isa::min(isa::load_n(x + i, n), top);
    const F u = isa::max(isa::min(isa::load_n(up + i, n), top), bottom);
    const F s = isa::sigmoid(isa::mul(g, isa::set1(1.702f)));
    isa::store_n(out + i, isa::mul(isa::add(u, one), isa::mul(g, s)), n);
  }
}

void weighted_sum(const float* rows, ptrdiff_t stride, const int32_t* places, const float* weights,
                  int count, int n, float* out) {
  for (int c = 0; c < n; c += kLanes) {
    const int m = std::min(kLanes, n - c);
    F sum = isa::zero();
    for (int i = 0; i < count; i++) {
      const F w = isa::set1(weights ? weights[i] : 1.0f);
      sum = isa::fma(w, isa::load_n(rows + places[i] * stride + c, m), sum);
    }
    isa::store_n(out + c, sum, m);
  }
}

}  // namespace gm::inline GM_ISA
