#include "recurrent.h"

namespace gm::inline GM_ISA {

StateArgs LayerState::args(const Frame& f) const {
  const Step::Table& table = f.step.tables[size_t(group)];
  return {f.step.spans, f.step.sequences, table.data, table.width, memory->table(group), offset};
}

ShortConvArgs ShortConvNode::args(const Frame& f) const {
  return {state.args(f),     f.at(x), weight.data(), bias ? bias->values.data() : nullptr,
          f.stride(x.slot),  columns, taps,          f.at(out),
          f.stride(out.slot)};
}

int ShortConvNode::units(const Frame& f, int) const { return short_conv_units(args(f)); }

void ShortConvNode::work(const Frame& f, int, int begin, int end, const Worker&) const {
  short_conv(args(f), begin, end);
}

RecurArgs RecurNode::args(const Frame& f) const {
  auto rows = [&](View view) { return Rows2{f.at(view), f.stride(view.slot)}; };
  RecurArgs a{};
  a.state = state.args(f);
  a.q = rows(q);
  a.k = rows(k);
  a.v = rows(v);
  a.step = rows(step);
  a.gain = rows(gain);
  a.rate = rate->values.data();
  a.skip = skip ? skip->values.data() : nullptr;
  a.heads = heads;
  a.key_heads = key_heads;
  a.key_dim = key_dim;
  a.value_dim = value_dim;
  a.delta = delta;
  a.tiled = tiled;
  a.out = f.at(out);
  a.out_stride = f.stride(out.slot);
  return a;
}

int RecurNode::units(const Frame& f, int) const { return recur_units(args(f)); }

void RecurNode::work(const Frame& f, int, int begin, int end, const Worker&) const {
  recur(args(f), begin, end);
}

}  // namespace gm::inline GM_ISA
