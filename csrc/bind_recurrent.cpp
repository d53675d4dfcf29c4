// The door for layers with a state of fixed size.
#include "bind.h"
#include "recurrent.h"

using namespace gm::GM_ISA;

namespace {

// Where a layer keeps `values` floats, `at` floats from `layer_offset` on.
LayerState kept(Recorder& r, std::shared_ptr<Memory> memory, int group, size_t layer_offset,
                size_t at, size_t values) {
  const size_t offset = layer_offset + sizeof(float) * at;
  if (offset + sizeof(float) * values > memory->block_bytes(group))
    refuse("the layer does not fit its block");
  if (r.states.size() <= size_t(group)) r.states.resize(size_t(group) + 1);
  r.states[size_t(group)] = true;
  return {std::move(memory), group, offset};
}

}  // namespace

void bind_recurrent(nb::class_<Recorder>& program) {
  program.def(
      "short_conv",
      [](Recorder& r, bool barrier, Columns out, Columns x, int columns, Vector& weight,
         std::shared_ptr<Vector> bias, int taps, std::shared_ptr<Memory> memory, int group,
         size_t layer_offset, size_t at) {
        if (taps < 2 || taps > kMostTaps) refuse("a short convolution has 2 to 16 taps");
        if (weight.values.size() != size_t(columns) * size_t(taps) ||
            (bias && bias->values.size() != size_t(columns)))
          refuse("the convolution's weight does not fit its columns");
        auto n = std::make_unique<ShortConvNode>();
        n->x = view(x);
        n->out = view(out);
        n->columns = columns;
        n->taps = taps;
        for (int j = 0; j < taps; j++)
          for (int c = 0; c < columns; c++)
            n->weight.push_back(weight.values[size_t(c) * size_t(taps) + size_t(j)]);
        n->bias = std::move(bias);
        n->state =
            kept(r, std::move(memory), group, layer_offset, at, size_t(taps - 1) * size_t(columns));
        r.program.add(std::move(n), "short_conv", barrier);
      },
      "barrier"_a, "out"_a, "x"_a, "columns"_a, "weight"_a, "bias"_a.none(), "taps"_a, "memory"_a,
      "group"_a, "layer_offset"_a, "at"_a);
  program.def(
      "recur",
      [](Recorder& r, bool barrier, Columns out, std::vector<Columns> inputs, int heads,
         int key_heads, int key_dim, int value_dim, bool delta, bool tiled,
         std::shared_ptr<Vector> rate, std::shared_ptr<Vector> skip, std::shared_ptr<Memory> memory,
         int group, size_t layer_offset, size_t at) {
        if (inputs.size() != 5) refuse("five inputs are expected");
        if (key_heads < 1 || heads % key_heads || key_dim < 1 || value_dim < 1)
          refuse("the heads do not divide");
        if (rate->values.size() != size_t(heads) || (skip && skip->values.size() != size_t(heads)))
          refuse("a rate per head is needed");
        auto n = std::make_unique<RecurNode>();
        View* views[] = {&n->q, &n->k, &n->v, &n->step, &n->gain};
        for (int i = 0; i < 5; i++) *views[i] = view(inputs[size_t(i)]);
        n->out = view(out);
        n->heads = heads;
        n->key_heads = key_heads;
        n->key_dim = key_dim;
        n->value_dim = value_dim;
        n->delta = delta;
        n->tiled = tiled;
        n->rate = std::move(rate);
        n->skip = std::move(skip);
        n->state = kept(r, std::move(memory), group, layer_offset, at,
                        size_t(heads) * size_t(key_dim) * size_t(value_dim));
        r.program.add(std::move(n), "recur", barrier);
      },
      "barrier"_a, "out"_a, "inputs"_a, "heads"_a, "key_heads"_a, "key_dim"_a, "value_dim"_a,
      "delta"_a, "tiled"_a, "rate"_a, "skip"_a.none(), "memory"_a, "group"_a, "layer_offset"_a,
      "at"_a);
}
