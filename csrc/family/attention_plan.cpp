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

}  // namespace gm::inline GM_ISA::attend

namespace gm::inline GM_ISA {

using namespace attend;

void AttentionPlan::make(const AttentionArgs& args, int workers) {
  const Shape shape(args);
  at_.clear();
  double total = 0;
  for (int i = 0; i < args.sequences; i++) {
    Span span(args, i);
    if (span.rows <= 0) continue;
    Sequence s{};
    s.sequence = i;
    s.tiles = shape.tiles(span.rows);
    int first = Span::visible(span.past, args.window), end = span.past + span.rows;
    s.first_chunk = first / kChunkTokens;
    s.chunks = (end - 1) / kChunkTokens + 1 - s.first_chunk;
    // Loading a block costs about as much as two queries on it.
    int seen = args.window > 0 ? std::min(end, args.window + shape.tile) : end;
    s.cost = double(seen) * (std::min(span.rows * shape.group, shape.tile) + 2);
    total += s.cost * s.tiles * args.kv_heads;
    at_.push_back(s);
  }
  std::sort(at_.begin(), at_.end(), [](const Sequence& a, const Sequence& b) {
    return a.cost != b.cost ? a.cost > b.cost : a.sequence < b.sequence;
  });
  stores_ = units_ = split_queries_ = results_ = 0;
  const double most = total / workers / 4;  // of a unit, for the workers to end together
  for (Sequence& s : at_) {
    const Span span(args, s.sequence);
    s.parts = workers == 1 ? 1 : int(std::clamp(std::ceil(s.cost / most), 1.0, double(s.chunks)));
    s.first_block = span.past / kBlockTokens;
    s.first_store = stores_;
    s.first_unit = units_;
    s.first_query = split_queries_;
    s.first_result = results_;
    const int blocks = (span.past + span.rows - 1) / kBlockTokens + 1 - s.first_block;
    stores_ += int64_t(blocks) * args.kv_heads;
    units_ += int64_t(s.tiles) * args.kv_heads * s.parts;
    if (s.parts > 1) {
      const int64_t queries = int64_t(span.rows) * args.heads;
      split_queries_ += queries;
      results_ += queries * s.chunks;
    }
  }
  scratch_ = kAlign + sizeof(float) * (shape.buffer_floats() * size_t(workers) +
                                       size_t(results_) * size_t(shape.partial_floats()));
}

int AttentionPlan::units(AttentionPhase phase) const {
  switch (phase) {
    case AttentionPhase::store:
      return int(stores_);
    case AttentionPhase::attend:
      return int(units_);
    case AttentionPhase::merge:
      break;
  }
  return int((split_queries_ + kMergedQueries - 1) / kMergedQueries);
}

const AttentionPlan::Sequence& AttentionPlan::of_store(int64_t unit) const {
  auto after = std::upper_bound(at_.begin(), at_.end(), unit,
                                [](int64_t u, const Sequence& s) { return u < s.first_store; });
  return after[-1];
}

const AttentionPlan::Sequence& AttentionPlan::of_unit(int64_t unit) const {
  auto after = std::upper_bound(at_.begin(), at_.end(), unit,
                                [](int64_t u, const Sequence& s) { return u < s.first_unit; });
  return after[-1];
}

}  // namespace gm::inline GM_ISA
