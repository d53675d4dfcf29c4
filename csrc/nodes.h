// The nodes of a program, one per op and per fusion that the recorder knows.
#pragma once
#include <memory>

#include "program.h"

namespace gm::inline GM_ISA {

// A unit is a row, so one may follow another without a barrier.
struct RowNode : Node {
  Rows rows = Rows::tokens;
  int width = 0;  // of the result
  Target target;
  int units(const Frame& f, int) const final { return f.rows(rows); }
  void work(const Frame& f, int phase, int begin, int end, const Worker& w) const final;
  std::optional<Rows> by_rows() const final { return rows; }
  // Computes one row into `out` (width floats).
  virtual void row(const Frame& f, int r, float* out) const = 0;

 private:
  const float* columns(Act act, const float* x) const;
};

struct EmbedNode : RowNode {
  std::shared_ptr<Matrix> table;
  float factor = 1.0f;
  void row(const Frame& f, int r, float* out) const override;
};

// Also the copy of a view into panels, with no norm at all.
struct CopyNode : RowNode {
  View x;
  void row(const Frame& f, int r, float* out) const override;
};

struct OutputsNode : RowNode {
  View x;
  void row(const Frame& f, int r, float* out) const override;
};

struct RmsNormNode : RowNode {
  View x;
  std::shared_ptr<Vector> weight;
  float eps = 0;
  int heads = 1;
  void row(const Frame& f, int r, float* out) const override;
};

struct LayerNormNode : RowNode {
  View x;
  std::shared_ptr<Vector> weight, bias;
  float eps = 0;
  int heads = 1;
  void row(const Frame& f, int r, float* out) const override;
};

struct GluNode : RowNode {
  View gate, up;
  Activation act = Activation::silu;
  void row(const Frame& f, int r, float* out) const override;
};

struct ActivationNode : RowNode {
  View x;
  Activation act = Activation::silu;
  void row(const Frame& f, int r, float* out) const override;
};

struct ElementwiseNode : RowNode {
  View x, y;
  Elementwise op = Elementwise::add;
  void row(const Frame& f, int r, float* out) const override;
};

struct ScaleNode : RowNode {
  View x;
  float factor = 1.0f;
  void row(const Frame& f, int r, float* out) const override;
};

struct SoftcapNode : RowNode {
  View x;
  float cap = 0;
  void row(const Frame& f, int r, float* out) const override;
};

struct RopeNode : RowNode {
  View x;
  int rope = 0, style = 0, pairs = 0, head_dim = 0;
  void row(const Frame& f, int r, float* out) const override;
};

struct LinearNode : Node {
  std::shared_ptr<Matrix> weight;
  int panels[3] = {-1, -1, -1};
  std::shared_ptr<Vector> bias;
  View residual;  // slot -1: none
  View out;
  int units(const Frame& f, int) const override;
  void work(const Frame& f, int phase, int begin, int end, const Worker& w) const override;
};

// Its phases: keys and values are stored, units attend, parts of one query are merged.
struct AttentionNode : Node {
  View q, k, v, out;  // k and v may have no slot: then another layer's are attended to
  int heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  bool outputs = false;  // q has a row for each wanted output, not for each token
  float scale = 1.0f, softcap = 0.0f;
  std::shared_ptr<Vector> sinks;
  std::shared_ptr<Memory> memory;
  int group = 0;
  size_t layer_offset = 0;
  KvType type = KvType::f16;
  // Layers of equal shape share a plan, which the first of them makes.
  std::shared_ptr<AttentionPlan> plan;
  bool plans = true;
  bool shares_plan(const AttentionNode& other) const;
  int phases() const override { return 3; }
  void prepare(const Frame& f, int workers) override;
  size_t scratch(const Frame& f, int workers) const override;
  int units(const Frame& f, int phase) const override;
  void work(const Frame& f, int phase, int begin, int end, const Worker& w) const override;

 private:
  AttentionArgs args(const Frame& f) const;
};

}  // namespace gm::inline GM_ISA
