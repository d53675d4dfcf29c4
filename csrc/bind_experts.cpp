// The door for mixtures of experts: their matrices and their node.
#include "bind.h"
#include "experts.h"

using namespace gm::GM_ISA;

namespace {

void check(const Routing& r) {
  const auto within = [](int x, int top) { return x >= 1 && x <= top; };
  if (!within(r.experts, 1 << 16) || !within(r.used, r.experts) || !within(r.groups, r.experts) ||
      r.experts % r.groups || !within(r.groups_used, r.groups) ||
      !within(r.group_best, r.experts / r.groups) ||
      r.used > r.groups_used * (r.experts / r.groups))
    refuse("no row can choose its experts so");
}

void check(const std::shared_ptr<Vector>& v, size_t size) {
  if (v && v->values.size() != size) refuse("a vector does not fit the experts");
}

std::unique_ptr<ExpertsNode> checked(std::unique_ptr<ExpertsNode> n) {
  check(n->routing);
  const auto& [up, down] = std::pair(n->gate_up, n->down);
  const int experts = n->routing.experts;
  if (!up->even() || !down->even()) refuse("the experts are of different sizes");
  if (up->count() != experts || down->count() != experts || up->n() != 2 * down->k() ||
      down->n() != up->k())
    refuse("the matrices of the experts do not fit together");
  check(n->gate_up_bias, size_t(experts) * size_t(up->n()));
  check(n->down_bias, size_t(experts) * size_t(down->n()));
  check(n->selection, size_t(experts));
  check(n->result_scale, size_t(experts));
  return n;
}

}  // namespace

void bind_experts(nb::module_& m, nb::class_<Recorder>& program) {
  nb::class_<Experts>(m, "Experts")
      .def(nb::init<int, int>(), "count"_a, "k"_a)
      .def(
          "append",
          [](Experts& self, int expert, const std::string& codec, int rows, Bytes source,
             Pool& pool) {
            CodecId id = codec_named(codec);
            nb::gil_scoped_release nogil;
            self.append(expert, id, rows, source.data(), source.shape(0), pool);
          },
          "expert"_a, "codec"_a, "rows"_a, "source"_a, "pool"_a)
      .def("adopt", &Experts::adopt, "expert"_a, "matrix"_a)
      .def_prop_ro("count", &Experts::count)
      .def_prop_ro("n", &Experts::n)
      .def_prop_ro("k", &Experts::k)
      .def_prop_ro("nbytes", &Experts::bytes);

  program.def(
      "experts",
      [](Recorder& r, bool barrier, Columns out, Columns x, Columns logits, Columns residual,
         std::shared_ptr<Experts> gate_up, std::shared_ptr<Experts> down, int gate, float limit,
         std::shared_ptr<Vector> gate_up_bias, std::shared_ptr<Vector> down_bias,
         std::shared_ptr<Vector> selection, std::shared_ptr<Vector> result_scale, int used,
         bool sigmoid, bool normalised, float scale, int groups, int groups_used, int group_best,
         bool weighs_input) {
        auto n = std::make_unique<ExpertsNode>();
        n->routing = {gate_up->count(), used,        sigmoid,    normalised,  scale,
                      groups,           groups_used, group_best, weighs_input};
        n->out = view(out);
        n->x = view(x);
        n->logits = view(logits);
        n->residual = view(residual);
        n->gate_up = std::move(gate_up);
        n->down = std::move(down);
        n->gate = Gate(gate);
        n->limit = limit;
        n->gate_up_bias = std::move(gate_up_bias);
        n->down_bias = std::move(down_bias);
        n->selection = std::move(selection);
        n->result_scale = std::move(result_scale);
        r.program.add(checked(std::move(n)), "experts", barrier);
      },
      "barrier"_a, "out"_a, "x"_a, "logits"_a, "residual"_a, "gate_up"_a, "down"_a, "gate"_a,
      "limit"_a, "gate_up_bias"_a.none(), "down_bias"_a.none(), "selection"_a.none(),
      "result_scale"_a.none(), "used"_a, "sigmoid"_a, "normalised"_a, "scale"_a, "groups"_a,
      "groups_used"_a, "group_best"_a, "weighs_input"_a);
}
