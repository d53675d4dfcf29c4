// Paged attention: store a step's keys and values, attend causally over block tables.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../threads.h"

namespace gm::inline GM_ISA {

constexpr int kBlockTokens = 32;

enum class KvType : int { f16 = 0, f32 = 1, bf16 = 2 };

inline size_t kv_element_bytes(KvType t) { return t == KvType::f32 ? 4 : 2; }

// Where one layer's keys and values lie. A block holds kBlockTokens tokens of every layer of
// its group; inside a layer, per kv head: keys as [head_dim][kBlockTokens] (so that a query
// meets 32 keys at once without a horizontal sum), then values as [kBlockTokens][head_dim].
struct KvLayer {
  uint8_t* const* blocks;  // block id -> its bytes
  size_t layer_offset;     // of this layer in a block
  KvType type;
};

struct AttentionArgs {
  // Activations: float32, strides in floats between rows. q is [T, heads · head_dim],
  // k and v are [T, kv_heads · head_dim], out as q.
  const float* q;
  ptrdiff_t q_stride;
  const float* k;
  ptrdiff_t k_stride;
  const float* v;
  ptrdiff_t v_stride;
  float* out;
  ptrdiff_t out_stride;
  int heads, kv_heads, head_dim;
  int window;  // 0: none; else a token sees itself and the window - 1 before it
  float scale, softcap;
  const float* sinks;  // per head, or null
  // The step: spans [sequences][3] = first row, rows, tokens before; table
  // [sequences][table_width] = block ids (-1: let go by the window).
  const int32_t* spans;
  int sequences;
  const int32_t* table;
  int table_width;
  KvLayer kv;
};

// Keys and values are stored; units attend; parts of a query that several units did are merged.
enum class AttentionPhase : int { store = 0, attend = 1, merge = 2 };

// How the attention of a step is cut into units of work. Layers of equal shape, window and type
// share it: it knows nothing of where their activations and blocks lie.
class AttentionPlan {
 public:
  struct Sequence {
    int sequence;
    int tiles;  // of queries, per kv head
    int parts;  // a tile's chunks are shared by this many units
    int first_chunk, chunks;
    int first_block;       // that gets keys and values
    double cost;           // of one tile, relative
    int64_t first_store;   // (block, kv head) of earlier sequences of the plan
    int64_t first_unit;    // units of earlier sequences
    int64_t first_query;   // queries of earlier sequences with parts > 1
    int64_t first_result;  // partial results of those
  };
  void make(const AttentionArgs& args, int workers);
  int units(AttentionPhase phase) const;
  // Bytes of scratch, shared by the phases.
  size_t scratch() const { return scratch_; }
  int64_t split_queries() const { return split_queries_; }
  const std::vector<Sequence>& sequences() const { return at_; }
  const Sequence& of_store(int64_t unit) const;
  const Sequence& of_unit(int64_t unit) const;

 private:
  std::vector<Sequence> at_;  // costliest tiles first
  int64_t stores_ = 0, units_ = 0, split_queries_ = 0, results_ = 0;
  size_t scratch_ = 0;
};

// Queries of a unit of the last phase.
constexpr int kMergedQueries = 8;

// Does units [begin, end) of a phase; `scratch` is as large as the plan says. A row's result
// depends on its own context alone: not on the other rows, on how a prompt was cut into chunks,
// on the number of workers.
void attention(const AttentionArgs& args, const AttentionPlan& plan, AttentionPhase phase,
               int begin, int end, const Worker& w, uint8_t* scratch);

}  // namespace gm::inline GM_ISA
