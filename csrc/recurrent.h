// The nodes of layers with a state of fixed size.
#pragma once
#include <memory>
#include <vector>

#include "family/recurrent.h"
#include "program.h"

namespace gm::inline GM_ISA {

// Where a layer's state of fixed size lies.
struct LayerState {
  std::shared_ptr<Memory> memory;
  int group = 0;
  size_t offset = 0;  // in a block, in bytes
  StateArgs args(const Frame& f) const;
};

struct ShortConvNode : Node {
  View x, out;
  std::vector<float> weight;  // [taps][columns]
  std::shared_ptr<Vector> bias;
  int columns = 0, taps = 0;
  LayerState state;
  int units(const Frame& f, int) const override;
  void work(const Frame& f, int phase, int begin, int end, const Worker& w) const override;

 private:
  ShortConvArgs args(const Frame& f) const;
};

struct RecurNode : Node {
  View q, k, v, step, gain, out;
  std::shared_ptr<Vector> rate, skip;
  int heads = 0, key_heads = 0, key_dim = 0, value_dim = 0;
  bool delta = false, tiled = false;
  LayerState state;
  int units(const Frame& f, int) const override;
  void work(const Frame& f, int phase, int begin, int end, const Worker& w) const override;

 private:
  RecurArgs args(const Frame& f) const;
};

}  // namespace gm::inline GM_ISA
