// Paged attention: store a step's keys and values, attend causally over block tables.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

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

// Bytes of shared scratch that `attention` needs for this step.
size_t attention_scratch(const AttentionArgs& args, int workers);

// Called by all workers together. `counter` is an atomic at zero; `scratch` as asked for.
// A row's result depends on its own context alone: not on the other rows, on how a prompt was
// cut into chunks, on the number of workers.
void attention(const AttentionArgs& args, const Worker& w, std::atomic<int>* counter,
               uint8_t* scratch);

}  // namespace gm::inline GM_ISA
