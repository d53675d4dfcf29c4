#include "attention_plan.h"

#include <cmath>

namespace gm::inline GM_ISA::attend {

namespace {

// Floats of the query tile and running values that may stay in a core's second cache.
constexpr int kTileFloats = 8192;

size_t rounded(size_t floats) { return (floats + 15) / 16 * 16; }

}  // namespace

Shape::Shape(const AttentionArgs& a)
    : group(a.heads / a.kv_heads),
      tile(std::clamp(kTileFloats / a.head_dim, kQueryTile, kMaxTile) / kQueryTile * kQueryTile),
      columns(a.head_dim),
      head_bytes(size_t(a.head_dim) * kBlockTokens * kv_element_bytes(a.kv.type)) {}

size_t Shape::buffer_floats() const {
  size_t dim = size_t(columns.head_dim), width = size_t(columns.width()), n = size_t(tile);
  return rounded(n * dim) + n * kChunkTokens + 2 * rounded(n * width) +
         rounded(size_t(columns.value_stride()) * kBlockTokens);
}

Buffers::Buffers(const Shape& shape, float* base) {
  size_t n = size_t(shape.tile), width = size_t(shape.columns.width());
  q = base;
  scores = q + rounded(n * size_t(shape.columns.head_dim));
  o = scores + n * kChunkTokens;
  total = o + rounded(n * width);
  block = total + rounded(n * width);
}

const SequencePlan& Plan::of_unit(int64_t unit) const {
  auto after = std::upper_bound(at, at + sequences, unit,
                                [](int64_t u, const SequencePlan& s) { return u < s.first_unit; });
  return after[-1];
}

Plan make_plan(const AttentionArgs& args, const Shape& shape, int workers, SequencePlan* at) {
  int n = 0;
  double total = 0;
  for (int i = 0; i < args.sequences; i++) {
    Span span(args, i);
    if (span.rows <= 0) continue;
    SequencePlan& s = at[n++];
    s = SequencePlan{};
    s.sequence = i;
    s.tiles = shape.tiles(span.rows);
    int first = Span::visible(span.past, args.window), end = span.past + span.rows;
    s.first_chunk = first / kChunkTokens;
    s.chunks = (end - 1) / kChunkTokens + 1 - s.first_chunk;
    // Loading a block costs about as much as two queries on it.
    int seen = args.window > 0 ? std::min(end, args.window + shape.tile) : end;
    s.cost = double(seen) * (std::min(span.rows * shape.group, shape.tile) + 2);
    total += s.cost * s.tiles * args.kv_heads;
  }
  std::sort(at, at + n, [](const SequencePlan& a, const SequencePlan& b) {
    return a.cost != b.cost ? a.cost > b.cost : a.sequence < b.sequence;
  });
  Plan plan{0, 0, 0, n, at};
  const double most = total / workers / 4;  // of a unit, for the workers to end together
  for (int i = 0; i < n; i++) {
    SequencePlan& s = at[i];
    Span span(args, s.sequence);
    s.parts = workers == 1 ? 1 : int(std::clamp(std::ceil(s.cost / most), 1.0, double(s.chunks)));
    s.first_unit = plan.units;
    s.first_query = plan.split_queries;
    s.first_result = plan.results;
    plan.units += int64_t(s.tiles) * args.kv_heads * s.parts;
    if (s.parts > 1) {
      int64_t queries = int64_t(span.rows) * args.heads;
      plan.split_queries += queries;
      plan.results += queries * s.chunks;
    }
  }
  return plan;
}

}  // namespace gm::inline GM_ISA::attend
