#include "nodes.h"

#include <cstring>

namespace gm::inline GM_ISA {

void RowNode::work(const Frame& f, int, int begin, int end, const Worker&) const {
  const int n = f.rows(rows);
  thread_local std::vector<float> kept;
  for (int r = begin; r < end; r++) {
    float* out;
    if (target.out.slot >= 0) {
      out = f.at(target.out, r);
    } else {
      if (kept.size() < size_t(width)) kept.resize(size_t(width));
      out = kept.data();
    }
    row(f, r, out);
    for (int a = 0; a < 3; a++)
      if (target.panels[a] >= 0)
        write_panel_row(Act(a), RowBlocks(n, Act(a)), r, columns(Act(a), out), width,
                        f.bytes(target.panels[a]));
  }
}

// A row's columns as a panel wants them.
const float* RowNode::columns(Act act, const float* x) const {
  if (act != Act::q8 || !target.order) return x;
  thread_local std::vector<float> ordered;
  ordered.resize(size_t(width));
  for (int i = 0; i < width; i++) ordered[size_t(i)] = x[(*target.order)[size_t(i)]];
  return ordered.data();
}

void EmbedNode::row(const Frame& f, int r, float* out) const {
  table->decode(f.step.ids[r], out);
  if (factor != 1.0f) gm::scale(out, factor, width, out);
}

void CopyNode::row(const Frame& f, int r, float* out) const {
  std::memcpy(out, f.at(x, r), sizeof(float) * size_t(width));
}

void OutputsNode::row(const Frame& f, int r, float* out) const {
  std::memcpy(out, f.at(x, f.step.outputs[r]), sizeof(float) * size_t(width));
}

void RmsNormNode::row(const Frame& f, int r, float* out) const {
  rms_norm(f.at(x, r), weight ? weight->values.data() : nullptr, eps, heads, width / heads, out);
}

void LayerNormNode::row(const Frame& f, int r, float* out) const {
  const float *in = f.at(x, r), *w = weight->values.data();
  const float* b = bias ? bias->values.data() : nullptr;
  for (int at = 0; at < width; at += width / heads)
    layer_norm(in + at, w + at, b ? b + at : nullptr, eps, width / heads, out + at);
}

void GluNode::row(const Frame& f, int r, float* out) const {
  glu(act, f.at(gate, r), f.at(up, r), width, out);
}

void ActivationNode::row(const Frame& f, int r, float* out) const {
  activate(act, f.at(x, r), width, out);
}

void ElementwiseNode::row(const Frame& f, int r, float* out) const {
  elementwise(op, f.at(x, r), f.at(y, r), width, out);
}

void ScaleNode::row(const Frame& f, int r, float* out) const {
  gm::scale(f.at(x, r), factor, width, out);
}

void SoftcapNode::row(const Frame& f, int r, float* out) const {
  gm::softcap(f.at(x, r), cap, width, out);
}

void RopeNode::row(const Frame& f, int r, float* out) const {
  const int token = rows == Rows::tokens ? r : f.step.outputs[r];
  gm::rope(f.at(x, r), f.cosine(rope, token), f.sine(rope, token), pairs, style, width / head_dim,
           head_dim, out);
}

int LinearNode::units(const Frame& f, int) const {
  return f.rows_of(out.slot) > 0 ? linear_units(weight->segments()) : 0;
}

void LinearNode::work(const Frame& f, int, int begin, int end, const Worker&) const {
  LinearArgs a{};
  a.segments = &weight->segments();
  for (int i = 0; i < 3; i++) a.panels[i] = panels[i] < 0 ? nullptr : f.bytes(panels[i]);
  a.rows = f.rows_of(out.slot);
  a.out = f.at(out);
  a.out_stride = f.stride(out.slot);
  a.bias = bias ? bias->values.data() : nullptr;
  a.residual = residual.slot < 0 ? nullptr : f.at(residual);
  a.residual_stride = residual.slot < 0 ? 0 : f.stride(residual.slot);
  linear(a, begin, end);
}

AttentionArgs AttentionNode::args(const Frame& f) const {
  AttentionArgs a{};
  a.q = f.at(q);
  a.q_stride = f.stride(q.slot);
  if (k.slot >= 0) {
    a.k = f.at(k);
    a.k_stride = f.stride(k.slot);
    a.v = f.at(v);
    a.v_stride = f.stride(v.slot);
  }
  a.out = f.at(out);
  a.out_stride = f.stride(out.slot);
  a.heads = heads;
  a.kv_heads = kv_heads;
  a.head_dim = head_dim;
  a.window = window;
  a.scale = scale;
  a.softcap = softcap;
  a.sinks = sinks ? sinks->values.data() : nullptr;
  a.spans = outputs ? f.step.runs.spans.data() : f.step.spans;
  a.sequences = outputs ? f.step.runs.count : f.step.sequences;
  a.table = outputs ? f.step.runs.data[size_t(group)].data() : f.step.tables[size_t(group)].data;
  a.table_width = f.step.tables[size_t(group)].width;
  a.kv = {memory->table(group), layer_offset, type};
  return a;
}

bool AttentionNode::shares_plan(const AttentionNode& other) const {
  return heads == other.heads && kv_heads == other.kv_heads && head_dim == other.head_dim &&
         window == other.window && type == other.type && outputs == other.outputs;
}

void AttentionNode::prepare(const Frame& f, int workers) {
  if (plans) plan->make(args(f), workers);
}

size_t AttentionNode::scratch(const Frame&, int) const { return plan->scratch(); }

int AttentionNode::units(const Frame&, int phase) const {
  if (k.slot < 0 && AttentionPhase(phase) == AttentionPhase::store) return 0;
  return plan->units(AttentionPhase(phase));
}

void AttentionNode::work(const Frame& f, int phase, int begin, int end, const Worker& w) const {
  attention(args(f), *plan, AttentionPhase(phase), begin, end, w, f.scratch());
}

}  // namespace gm::inline GM_ISA
