// The experts of a layer: their packed matrices, and the node that plays them.
#pragma once
#include <memory>

#include "family/experts.h"
#include "program.h"

namespace gm::inline GM_ISA {

// Packed matrices [count][N, K], each of segments as a Matrix is.
class Experts {
 public:
  Experts(int count, int k);
  Experts(const Experts&) = delete;
  Experts& operator=(const Experts&) = delete;
  // Packs `rows` rows of file bytes behind what there is of one expert. Throws
  // std::invalid_argument.
  void append(int expert, CodecId codec, int rows, const uint8_t* source, size_t bytes, Pool& pool);
  // The same, of all the rows of a matrix that has no order of columns.
  void adopt(int expert, std::shared_ptr<Matrix> matrix);
  int count() const { return int(experts_.size()); }
  // Rows of each expert, if they are even.
  int n() const {
    return experts_[0].empty() ? 0 : experts_[0].back().out0 + experts_[0].back().rows;
  }
  int k() const { return k_; }
  bool even() const;
  size_t bytes() const;
  bool needs(Act act) const { return needs_[int(act)]; }
  const std::vector<Segment>& of(int expert) const { return experts_[size_t(expert)]; }

 private:
  // The same part of all experts, in one mapping.
  struct Shelf {
    CodecId codec;
    int rows;
    Pages pages;
  };
  uint8_t* room(int expert, size_t part, CodecId codec, int rows, size_t bytes);
  int k_;
  bool needs_[3] = {};
  std::vector<std::vector<Segment>> experts_;
  std::vector<Shelf> shelves_;  // by part
  std::vector<std::shared_ptr<Matrix>> adopted_;
  std::vector<Pages> others_;  // parts that differ from their shelf
};

// Its phases: rows choose; choices are sorted by expert; the rows of each expert are brought
// together; gate and up; their product; down; each row's results are summed.
struct ExpertsNode : Node {
  View x, logits, residual, out;  // residual slot -1: none
  std::shared_ptr<Experts> gate_up, down;
  std::shared_ptr<Vector> gate_up_bias, down_bias, selection, result_scale;
  Routing routing;
  Gate gate = Gate::silu;
  float limit = 0.0f;
  int phases() const override { return 7; }
  size_t scratch(const Frame& f, int workers) const override;
  int units(const Frame& f, int phase) const override;
  void work(const Frame& f, int phase, int begin, int end, const Worker& w) const override;

 private:
  struct Space;
  Space space(const Frame& f) const;
  int grain(int rows, const Experts& matrix) const;
  int units_of(int rows, const Experts& matrix) const;
  void choose(const Frame& f, const Space& s, int row) const;
  void gather(const Frame& f, const Space& s, int expert) const;
  void multiply(const Space& s, int rows, bool first, int begin, int end) const;
  void meet(const Space& s, int place) const;
  void sum(const Frame& f, const Space& s, int row) const;
};

}  // namespace gm::inline GM_ISA
