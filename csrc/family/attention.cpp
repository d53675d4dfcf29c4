#include "attention.h"

#include <vector>

#include "attention_pairs.h"
#include "attention_plan.h"

namespace gm::inline GM_ISA {

namespace {

using namespace attend;

using Sequence = AttentionPlan::Sequence;

// ---------------------------------------------------------------- phase 1: store

// The elements of one cache type, two or four bytes.
template <class Element>
void store_keys(const AttentionArgs& a, const float* k, int from, int to, uint8_t* target) {
  auto keys = reinterpret_cast<Element*>(target);
  constexpr int kDims = 16;
  alignas(64) float turned[kDims][kBlockTokens] = {};
  alignas(64) Element narrowed[kBlockTokens];
  static_assert(kBlockTokens % kLanes == 0 && kDims % kLanes == 0);
  for (int d0 = 0; d0 < a.head_dim; d0 += kDims) {
    const int dims = std::min(kDims, a.head_dim - d0);
    if (to - from == 1) {
      std::memcpy(turned[0], k + d0, sizeof(float) * size_t(dims));
      narrow(a.kv.type, turned[0], kDims, narrowed);
      for (int d = 0; d < dims; d++) keys[(d0 + d) * kBlockTokens + from] = narrowed[d];
      continue;
    }
    for (int t = from; t < to; t++)
      for (int d = 0; d < dims; d++) turned[d][t] = k[(t - from) * a.k_stride + d0 + d];
    for (int d = 0; d < dims; d++) {
      narrow(a.kv.type, turned[d], kBlockTokens, narrowed);
      std::memcpy(keys + (d0 + d) * kBlockTokens + from, narrowed + from,
                  sizeof(Element) * size_t(to - from));
    }
  }
}

template <class Element>
void store_values(const AttentionArgs& a, const float* v, int from, int to, uint8_t* target) {
  auto values = reinterpret_cast<Element*>(target);
  constexpr int kColumns = 64;
  alignas(64) float wide[kColumns] = {};
  alignas(64) Element narrowed[kColumns];
  for (int t = from; t < to; t++, v += a.v_stride)
    for (int c = 0; c < a.head_dim; c += kColumns) {
      const int n = std::min(kColumns, a.head_dim - c);
      std::memcpy(wide, v + c, sizeof(float) * size_t(n));
      narrow(a.kv.type, wide, kColumns, narrowed);
      std::memcpy(values + t * a.head_dim + c, narrowed, sizeof(Element) * size_t(n));
    }
}

uint8_t* head_of_block(const AttentionArgs& a, const Shape& shape, int sequence, int block,
                       int kv_head) {
  int32_t id = a.table[ptrdiff_t(sequence) * a.table_width + block];
  return a.kv.blocks[id] + a.kv.layer_offset + size_t(kv_head) * 2 * shape.head_bytes;
}

void store_block(const AttentionArgs& a, const Shape& shape, int sequence, int block, int kv_head) {
  Span span(a, sequence);
  const int begin = block * kBlockTokens;
  const int from = std::max(begin, span.past);
  const int to = std::min(begin + kBlockTokens, span.past + span.rows);
  const ptrdiff_t row = span.first_row + (from - span.past), column = kv_head * a.head_dim;
  const float* k = a.k + row * a.k_stride + column;
  const float* v = a.v + row * a.v_stride + column;
  uint8_t* keys = head_of_block(a, shape, sequence, block, kv_head);
  uint8_t* values = keys + shape.head_bytes;
  if (paired(a.kv.type, a.head_dim)) {
    store_key_pairs(k, a.k_stride, a.head_dim, from - begin, to - begin, keys);
    store_value_pairs(v, a.v_stride, a.head_dim, from - begin, to - begin, values);
  } else if (a.kv.type == KvType::f32) {
    store_keys<float>(a, k, from - begin, to - begin, keys);
    store_values<float>(a, v, from - begin, to - begin, values);
  } else {
    store_keys<uint16_t>(a, k, from - begin, to - begin, keys);
    store_values<uint16_t>(a, v, from - begin, to - begin, values);
  }
}

void store_unit(const AttentionArgs& a, const Shape& shape, const AttentionPlan& plan,
                int64_t unit) {
  const Sequence& s = plan.of_store(unit);
  const int local = int(unit - s.first_store);
  store_block(a, shape, s.sequence, s.first_block + local / a.kv_heads, local % a.kv_heads);
}

// --------------------------------------------------------------- phase 2: attend

// A tile of queries of one kv head: query i is head i % group of row i / group.
class Tile {
 public:
  Tile(const AttentionArgs& args, const Shape& shape, const Buffers& buffers, int sequence,
       int kv_head, int tile)
      : a_(args),
        shape_(shape),
        buffers_(buffers),
        span_(args, sequence),
        sequence_(sequence),
        kv_head_(kv_head),
        first_(tile * shape.tile),
        queries_(std::min(shape.tile, span_.rows * shape.group - first_)),
        pairs_(paired(args.kv.type, args.head_dim)),
        stored_(pairs_ ? pair_kernels() : kernels_of(args.kv.type)),
        widened_(kernels_of(KvType::f32)) {
    for (int i = 0; i < queries_; i++) {
      int position = span_.past + (first_ + i) / shape.group;
      from_[i] = Span::visible(position, args.window);
      to_[i] = position + 1;
    }
    load_queries();
  }

  int first_chunk() const { return from_[0] / kChunkTokens; }
  int end_chunk() const { return (to_[queries_ - 1] - 1) / kChunkTokens + 1; }

  // Chunks [begin, end) one after the other; `last` of all gets the results.
  void run_all(int begin, int end);
  void run_partial(const Sequence& s, int begin, int end, float* results);

 private:
  void load_queries();
  void chunk(int index);
  void score(int block, int begin, const uint8_t* next);
  void weigh(int block, int begin, const uint8_t* next);
  void weigh_in_pairs(int block, int begin, const uint8_t* next);
  const uint8_t* keys(int block) const {
    return head_of_block(a_, shape_, sequence_, block, kv_head_);
  }
  const uint8_t* values(int block) const { return keys(block) + shape_.head_bytes; }
  void weigh_each(WeighBlock one, const uint8_t* rows, size_t row_bytes, int token, int begin,
                  int i, int from, int to);
  void weigh_each_pair(const uint8_t* rows, int token, int begin, int i, int from, int to);
  const uint8_t* widened(const uint8_t* stored, bool are_values) const;
  int row(int i) const { return (first_ + i) / shape_.group; }
  int head(int i) const { return kv_head_ * shape_.group + (first_ + i) % shape_.group; }
  // Whether blocks are widened to float32 once, for several calls of the kernels.
  bool wide() const { return queries_ > kQueryTile && a_.kv.type != KvType::f32 && !pairs_; }
  bool visible(int i, int begin) const { return from_[i] < begin + kChunkTokens && to_[i] > begin; }

  const AttentionArgs& a_;
  const Shape& shape_;
  const Buffers& buffers_;
  const Span span_;
  const int sequence_, kv_head_, first_, queries_;
  const bool pairs_;  // the cache is laid out in pairs
  const Kernels& stored_;
  const Kernels& widened_;
  int from_[kMaxTile], to_[kMaxTile];  // tokens that a query sees
  Part part_[kMaxTile];                // of the current chunk
};

// Queries lie by feature (or pair of features), kQueryTile (at the end, the rest) side by side.
void Tile::load_queries() {
  for (int i0 = 0; i0 < queries_; i0 += kQueryTile) {
    const int n = std::min(kQueryTile, queries_ - i0);
    float* to = buffers_.q + i0 * a_.head_dim;
    for (int i = 0; i < n; i++) {
      const float* q = a_.q + (span_.first_row + row(i0 + i)) * a_.q_stride +
                       ptrdiff_t(head(i0 + i)) * a_.head_dim;
      if (!pairs_) {
        for (int d = 0; d < a_.head_dim; d++) to[d * n + i] = q[d] * a_.scale;
        continue;
      }
      for (int d = 0; d < a_.head_dim; d += 2) {
        const uint32_t word = pair_of(q[d] * a_.scale, q[d + 1] * a_.scale);
        std::memcpy(to + d / 2 * n + i, &word, 4);
      }
    }
  }
}

const uint8_t* Tile::widened(const uint8_t* stored, bool are_values) const {
  const bool f16 = a_.kv.type == KvType::f16, f32 = a_.kv.type == KvType::f32;
  if (are_values && shape_.columns.narrow()) {
    auto fill = f16 ? widen_narrow<FromF16> : f32 ? widen_narrow<FromF32> : widen_narrow<FromBf16>;
    fill(stored, kBlockTokens, a_.head_dim, buffers_.block);
  } else {
    auto fill = f16 ? widen_all<FromF16> : widen_all<FromBf16>;
    fill(stored, kBlockTokens * a_.head_dim, buffers_.block);
  }
  return reinterpret_cast<const uint8_t*>(buffers_.block);
}

// Scores of a block whose chunk begins at token `begin`.
void Tile::score(int block, int begin, const uint8_t* next) {
  const int token = block * kBlockTokens;
  const uint8_t* rows = keys(block);
  const Kernels& kernels = wide() ? widened_ : stored_;
  if (wide()) next = rows = widened(rows, false);
  for (int i = 0; i < queries_; i += kQueryTile) {
    const int n = std::min(kQueryTile, queries_ - i);
    if (from_[i] >= token + kBlockTokens || to_[i + n - 1] <= token) continue;
    kernels.score[size_t(n - 1)](buffers_.q + i * a_.head_dim, rows, next, a_.head_dim,
                                 buffers_.scores + i * kChunkTokens + (token - begin));
  }
}

// What query i alone sees of tokens [from, to) of the block that starts at `token`.
void Tile::weigh_each(WeighBlock one, const uint8_t* rows, size_t row_bytes, int token, int begin,
                      int i, int from, int to) {
  from = std::max({from, from_[i], token});
  to = std::min({to, to_[i], token + kBlockTokens});
  if (from >= to) return;
  rows += size_t(from - token) * row_bytes;
  one(buffers_.scores + i * kChunkTokens + (from - begin), rows, rows, to - from,
      buffers_.o + i * shape_.columns.width(), shape_.columns);
}

// A query meets the rows it sees and no others: at the edges of causality and window the
// queries of a tile go one by one, in the same order of tokens.
void Tile::weigh(int block, int begin, const uint8_t* next) {
  const int token = block * kBlockTokens, end = token + kBlockTokens;
  const bool widens = wide() || shape_.columns.narrow();
  const uint8_t* rows = values(block);
  if (widens) next = rows = widened(rows, true);
  const Kernels& kernels = widens ? widened_ : stored_;
  const size_t row_bytes = size_t(shape_.columns.value_stride()) *
                           (widens ? sizeof(float) : kv_element_bytes(a_.kv.type));
  for (int i0 = 0; i0 < queries_; i0 += kQueryTile) {
    const int n = std::min(kQueryTile, queries_ - i0);
    if (from_[i0] >= end || to_[i0 + n - 1] <= token) continue;
    const int common = std::max(from_[i0 + n - 1], token), until = std::min(to_[i0], end);
    const bool together = common < until;
    for (int i = i0; i < i0 + n; i++)
      weigh_each(kernels.weigh[0], rows, row_bytes, token, begin, i, token,
                 together ? common : end);
    if (!together) continue;
    const size_t skipped = size_t(common - token) * row_bytes;
    kernels.weigh[size_t(n - 1)](buffers_.scores + i0 * kChunkTokens + (common - begin),
                                 rows + skipped, next + skipped, until - common,
                                 buffers_.o + i0 * shape_.columns.width(), shape_.columns);
    for (int i = i0; i < i0 + n; i++)
      weigh_each(kernels.weigh[0], rows, row_bytes, token, begin, i, until, end);
  }
}

// weigh_each for a cache in pairs: the pairs at the edges are seen in half.
void Tile::weigh_each_pair(const uint8_t* rows, int token, int begin, int i, int from, int to) {
  from = std::max({from, from_[i], token}) - token;
  to = std::min({to, to_[i], token + kBlockTokens}) - token;
  if (from >= to) return;
  const float* p = buffers_.scores + i * kChunkTokens + (token - begin) / 2;
  float* o = buffers_.o + i * shape_.columns.width();
  const size_t pair_bytes = size_t(a_.head_dim) * 4;
  auto pair = [&](int n) { return rows + size_t(n) * pair_bytes; };
  if (from % 2) {
    weigh_half(p + from / 2, pair(from / 2), true, o, shape_.columns);
    from++;
  }
  if (to - from >= 2)
    stored_.weigh[0](p + from / 2, pair(from / 2), pair(from / 2), (to - from) / 2, o,
                     shape_.columns);
  if (to > from && to % 2) weigh_half(p + to / 2, pair(to / 2), false, o, shape_.columns);
}

// weigh for a cache in pairs.
void Tile::weigh_in_pairs(int block, int begin, const uint8_t* next) {
  const int token = block * kBlockTokens, end = token + kBlockTokens;
  const uint8_t* rows = values(block);
  for (int i0 = 0; i0 < queries_; i0 += kQueryTile) {
    const int n = std::min(kQueryTile, queries_ - i0);
    if (from_[i0] >= end || to_[i0 + n - 1] <= token) continue;
    const int common = (std::max(from_[i0 + n - 1], token) + 1) / 2 * 2;
    const int until = std::min(to_[i0], end) / 2 * 2;
    const bool together = common < until;
    for (int i = i0; i < i0 + n; i++)
      weigh_each_pair(rows, token, begin, i, token, together ? common : end);
    if (!together) continue;
    const size_t skipped = size_t(common - token) / 2 * size_t(a_.head_dim) * 4;
    stored_.weigh[size_t(n - 1)](buffers_.scores + i0 * kChunkTokens + (common - begin) / 2,
                                 rows + skipped, next + skipped, (until - common) / 2,
                                 buffers_.o + i0 * shape_.columns.width(), shape_.columns);
    for (int i = i0; i < i0 + n; i++) weigh_each_pair(rows, token, begin, i, until, end);
  }
}

// The softmax of each query over the tokens of one chunk: part_ and buffers_.o.
void Tile::chunk(int index) {
  const int begin = index * kChunkTokens, width = shape_.columns.width();
  const int first = std::max(begin, from_[0]) / kBlockTokens;
  const int end =
      (std::min(begin + kChunkTokens, to_[queries_ - 1]) + kBlockTokens - 1) / kBlockTokens;
  for (int b = first; b < end; b++) score(b, begin, b + 1 < end ? keys(b + 1) : values(first));
  for (int i = 0; i < queries_; i++) {
    if (!visible(i, begin)) continue;
    float* scores = buffers_.scores + i * kChunkTokens;
    const int from = std::max(from_[i] - begin, 0), to = std::min(to_[i] - begin, kChunkTokens);
    part_[i] = soften(scores, from, to, a_.softcap);
    if (pairs_) pair_weights(scores, from, to);
    std::memset(buffers_.o + i * width, 0, sizeof(float) * size_t(width));
  }
  const bool last = end * kBlockTokens >= to_[queries_ - 1];
  for (int b = first; b < end; b++) {
    const uint8_t* next = b + 1 < end ? values(b + 1) : last ? values(b) : keys(end);
    if (pairs_)
      weigh_in_pairs(b, begin, next);
    else
      weigh(b, begin, next);
  }
}

void Tile::run_all(int begin, int end) {
  const int width = shape_.columns.width();
  Part total[kMaxTile];
  for (int c = begin; c < end; c++) {
    chunk(c);
    for (int i = 0; i < queries_; i++) {
      if (!visible(i, c * kChunkTokens)) continue;
      float* to = buffers_.total + i * width;
      const float* o = buffers_.o + i * width;
      if (from_[i] >= c * kChunkTokens) {  // the first it sees
        total[i] = part_[i];
        std::memcpy(to, o, sizeof(float) * size_t(width));
      } else {
        merge(total[i], to, part_[i], o, width);
      }
    }
  }
  for (int i = 0; i < queries_; i++)
    finish(total[i], buffers_.total + i * width, a_.sinks ? a_.sinks + head(i) : nullptr,
           shape_.columns,
           a_.out + (span_.first_row + row(i)) * a_.out_stride + ptrdiff_t(head(i)) * a_.head_dim);
}

// Where the result of a (row, head, chunk) of a sequence in parts lies.
float* result_of(const AttentionArgs& a, const Shape& shape, const Sequence& s, int row, int head,
                 int chunk, float* results) {
  int64_t query = int64_t(row) * a.heads + head;
  int64_t index = s.first_result + query * s.chunks + (chunk - s.first_chunk);
  return results + index * shape.partial_floats();
}

void Tile::run_partial(const Sequence& s, int begin, int end, float* results) {
  const int width = shape_.columns.width();
  for (int c = begin; c < end; c++) {
    chunk(c);
    for (int i = 0; i < queries_; i++) {
      if (!visible(i, c * kChunkTokens)) continue;
      float* to = result_of(a_, shape_, s, row(i), head(i), c, results);
      std::memcpy(to, buffers_.o + i * width, sizeof(float) * size_t(width));
      to[width] = part_[i].max;
      to[width + 1] = part_[i].sum;
    }
  }
}

void attend_unit(const AttentionArgs& a, const Shape& shape, const AttentionPlan& plan,
                 const Buffers& buffers, int64_t unit, float* results) {
  const Sequence& s = plan.of_unit(unit);
  const int64_t local = unit - s.first_unit;
  const int part = int(local % s.parts), kv_head = int(local / s.parts % a.kv_heads);
  // The last queries see most: they go first.
  const int index = s.tiles - 1 - int(local / s.parts / a.kv_heads);
  Tile tile(a, shape, buffers, s.sequence, kv_head, index);
  const int first = tile.first_chunk(), end = tile.end_chunk();
  if (s.parts == 1) return tile.run_all(first, end);
  const int64_t chunks = end - first;
  tile.run_partial(s, first + int(chunks * part / s.parts),
                   first + int(chunks * (part + 1) / s.parts), results);
}

// ---------------------------------------------------------------- phase 3: merge

void merge_query(const AttentionArgs& a, const Shape& shape, const Sequence& s, int row, int head,
                 float* total, float* results) {
  Span span(a, s.sequence);
  const int position = span.past + row, width = shape.columns.width();
  const int first = Span::visible(position, a.window) / kChunkTokens;
  Part part{};
  for (int c = first; c <= position / kChunkTokens; c++) {
    const float* o = result_of(a, shape, s, row, head, c, results);
    const Part later{o[width], o[width + 1]};
    if (c == first) {
      part = later;
      std::memcpy(total, o, sizeof(float) * size_t(width));
    } else {
      merge(part, total, later, o, width);
    }
  }
  finish(part, total, a.sinks ? a.sinks + head : nullptr, shape.columns,
         a.out + (span.first_row + row) * a.out_stride + ptrdiff_t(head) * a.head_dim);
}

// Split queries [begin, end).
void merge_queries(const AttentionArgs& a, const Shape& shape, const AttentionPlan& plan,
                   int64_t begin, int64_t end, const Buffers& buffers, float* results) {
  for (const Sequence& s : plan.sequences()) {
    if (s.parts == 1) continue;
    const int64_t queries = int64_t(Span(a, s.sequence).rows) * a.heads;
    const int64_t last = std::min(end - s.first_query, queries);
    for (int64_t n = std::max<int64_t>(begin - s.first_query, 0); n < last; n++)
      merge_query(a, shape, s, int(n / a.heads), int(n % a.heads), buffers.total, results);
  }
}

}  // namespace

void attention(const AttentionArgs& args, const AttentionPlan& plan, AttentionPhase phase,
               int begin, int end, const Worker& w, uint8_t* scratch) {
  const Shape shape(args);
  auto floats = reinterpret_cast<float*>(aligned(scratch));
  const Buffers buffers(shape, floats + shape.buffer_floats() * size_t(w.id));
  float* results = floats + shape.buffer_floats() * size_t(w.count);
  switch (phase) {
    case AttentionPhase::store:
      for (int i = begin; i < end; i++) store_unit(args, shape, plan, i);
      break;
    case AttentionPhase::attend:
      for (int i = begin; i < end; i++) attend_unit(args, shape, plan, buffers, i, results);
      break;
    case AttentionPhase::merge:
      merge_queries(args, shape, plan, int64_t(begin) * kMergedQueries,
                    std::min(int64_t(end) * kMergedQueries, plan.split_queries()), buffers,
                    results);
      break;
  }
}

}  // namespace gm::inline GM_ISA
