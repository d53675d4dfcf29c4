// How the attention of a step is cut into units of work, and where its scratch lies.
#pragma once
#include "attention_kernels.h"

namespace gm::inline GM_ISA::attend {

// Queries of one kv head that share each widened block of keys and values.
constexpr int kMaxTile = 64;

// The fixed numbers of a call.
struct Shape {
  int group;  // query heads of a kv head
  int tile;   // most queries of a unit
  Columns columns;
  size_t head_bytes;  // keys, or values, of one kv head in a block
  explicit Shape(const AttentionArgs& a);
  int tiles(int rows) const { return (rows * group + tile - 1) / tile; }
  // Floats of a stored partial result: the weighted values, then maximum and sum.
  int partial_floats() const { return columns.width() + kLanes; }
  size_t buffer_floats() const;
};

struct Span {
  int first_row, rows, past;
  Span(const AttentionArgs& a, int sequence)
      : first_row(a.spans[3 * sequence]),
        rows(a.spans[3 * sequence + 1]),
        past(a.spans[3 * sequence + 2]) {}
  // The first token that the token at `position` sees.
  static int visible(int position, int window) {
    return window > 0 ? std::max(0, position + 1 - window) : 0;
  }
};

struct SequencePlan {
  int sequence;
  int tiles;  // of queries, per kv head
  int parts;  // a tile's chunks are shared by this many units
  int first_chunk, chunks;
  double cost;           // of one tile, relative
  int64_t first_unit;    // units of earlier sequences of the plan
  int64_t first_query;   // queries of earlier sequences with parts > 1
  int64_t first_result;  // partial results of those
};

struct Plan {
  int64_t units, split_queries, results;
  int sequences;
  SequencePlan* at;  // costliest tiles first

  const SequencePlan& of_unit(int64_t unit) const;
};

// Fills `at` (room for all sequences of the call) and returns the plan.
Plan make_plan(const AttentionArgs& args, const Shape& shape, int workers, SequencePlan* at);

// A worker's own buffers.
struct Buffers {
  float *q, *scores, *o, *total, *block;
  Buffers(const Shape& shape, float* base);
};

}  // namespace gm::inline GM_ISA::attend
