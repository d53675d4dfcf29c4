// What the files of the door share: how Python's arguments are named and checked.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "codec/codec.h"
#include "nodes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gm::inline GM_ISA {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints1 = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints2 = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats1 = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes2 = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Columns = std::pair<int, int>;  // a View

[[noreturn]] inline void refuse(const char* what) { throw std::invalid_argument(what); }

inline CodecId codec_named(const std::string& name) {
#define X(type, codec) \
  if (name == #codec) return CodecId::codec;
  GM_FILE_CODECS(X)
#undef X
  refuse("no such codec");
}

inline View view(Columns c) { return {c.first, c.second}; }

inline Target target(Columns out, const std::vector<int>& panels) {
  if (panels.size() != 3) refuse("three panels are expected");
  Target t;
  t.out = view(out);
  for (int i = 0; i < 3; i++) t.panels[i] = panels[size_t(i)];
  return t;
}

// The recorder's side of a program: one method per node.
class Recorder {
 public:
  Recorder(std::shared_ptr<Pool> pool) : program(std::move(pool)) {}
  Program program;
  // By state group: the longest window that attention looks back on, 0 for all, -1 for none.
  std::vector<int> windows;

  // By state group: whether its blocks hold states, of which a step reads one and leaves one.
  std::vector<bool> states;

  // Layers of equal attention share a plan, which the first of them makes.
  void plan(AttentionNode& node) {
    for (const AttentionNode* other : planners_)
      if (node.shares_plan(*other)) {
        node.plan = other->plan;
        node.plans = false;
        return;
      }
    node.plan = std::make_shared<AttentionPlan>();
    planners_.push_back(&node);
  }

  void looks_back(int group, int window) {
    if (windows.size() <= size_t(group)) windows.resize(size_t(group) + 1, -1);
    int& w = windows[size_t(group)];
    w = w == 0 || window == 0 ? 0 : std::max(w, window);
  }

  template <class N>
  N* row_node(const char* kind, bool barrier, int rows, int width, Columns out,
              const std::vector<int>& panels) {
    auto node = std::make_unique<N>();
    node->rows = Rows(rows);
    node->width = width;
    node->target = target(out, panels);
    N* raw = node.get();
    last_ = raw;
    program.add(std::move(node), kind, barrier);
    return raw;
  }

  void order_columns(const std::shared_ptr<const Order>& order) {
    if (!last_ || !order || order->size() != size_t(last_->width))
      refuse("the order is not of the result's columns");
    last_->target.order = order;
  }

 private:
  std::vector<const AttentionNode*> planners_;
  RowNode* last_ = nullptr;
};

}  // namespace gm::inline GM_ISA

// Each adds its part of the module.
void bind_matrix(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_experts(nb::module_& m, nb::class_<gm::Recorder>& program);
void bind_recurrent(nb::class_<gm::Recorder>& program);
