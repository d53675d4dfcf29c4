// The door between Python and the kernels: checks types, shapes and sizes, then lets the GIL go.
#include "bind.h"

#include <cstring>

#include "codec/pack.h"

namespace gm::inline GM_ISA {
namespace {

// The first block that a sequence of `past` tokens still reads.
int64_t first_read(int past, int window) {
  if (window < 0) return INT64_MAX;
  return window == 0 ? 0 : std::max<int64_t>(0, int64_t(past) + 1 - window) / kBlockTokens;
}

// The bytes of a block. Throws std::out_of_range.
uint8_t* block_of(const Memory& memory, int group, size_t block) {
  if (block >= memory.blocks(group)) throw std::out_of_range("no such block");
  return memory.table(group)[block];
}

// Checks everything that a kernel would trust.
void check_step(const Step& s, int vocab, const Memory& memory, const std::vector<int>& windows,
                const std::vector<bool>& states) {
  if (s.tables.size() != size_t(memory.groups())) refuse("a block table per state group is needed");
  for (int t = 0; t < s.tokens; t++) {
    if (s.ids[t] < 0 || s.ids[t] >= vocab) refuse("a token id is outside the vocabulary");
    if (s.positions[t] < 0) refuse("a position is negative");
  }
  for (int i = 0; i < s.outputs_count; i++)
    if (s.outputs[i] < 0 || s.outputs[i] >= s.tokens) refuse("an output row is outside the step");
  int next = 0;
  for (int i = 0; i < s.sequences; i++) {
    const int32_t* span = s.spans + 3 * i;
    if (span[0] != next || span[1] <= 0 || span[2] < 0 || span[1] > s.tokens - next)
      refuse("the spans do not cover the step's rows in order");
    next += span[1];
    for (size_t g = 0; g < s.tables.size(); g++) {
      int64_t blocks = (int64_t(span[1]) + span[2] + kBlockTokens - 1) / kBlockTokens;
      if (blocks > s.tables[g].width) refuse("a block table is shorter than its sequence");
      const int32_t* table = s.tables[g].data + size_t(i) * size_t(s.tables[g].width);
      // What is read or written must be there; a window may have let go of earlier blocks.
      int64_t first = first_read(span[2], g < windows.size() ? windows[g] : -1);
      int64_t count = int64_t(memory.blocks(int(g)));
      for (int64_t b = 0; b < blocks; b++)
        if (table[b] < (b < first ? -1 : 0) || table[b] >= count)
          refuse("a block table names a block that is not there");
      if (g < states.size() && states[g])
        if (table[blocks - 1] < 0 || (span[2] > 0 && table[(span[2] - 1) / kBlockTokens] < 0))
          refuse("a state that the step reads or leaves has no block");
    }
  }
  if (next != s.tokens) refuse("the spans do not cover the step's rows in order");
}

}  // namespace
}  // namespace gm::inline GM_ISA

using namespace gm::GM_ISA;

NB_MODULE(GM_MODULE, m) {
  // What lives until the interpreter ends is no leak that a person could act on.
  nb::set_leak_warnings(false);
  m.attr("ISA") = GM_ISA_NAME;
  m.attr("LANES") = isa::kLanes;
  m.attr("MULTIPLIES_BF16") = isa::kDotBf16;
  m.attr("BLOCK_TOKENS") = kBlockTokens;
  m.def("panel_row_bytes", [](int act, int k) { return panel_row_bytes(Act(act), k); });

  nb::class_<Pool>(m, "Pool")
      .def(nb::init<int>(), "threads"_a)
      .def_prop_ro("threads", &Pool::threads)
      .def("give_way", &Pool::give_way, "on"_a);

  nb::class_<Memory>(m, "Memory")
      .def(nb::init<std::vector<size_t>>(), "block_bytes"_a)
      .def("block_bytes", &Memory::block_bytes, "group"_a)
      .def("blocks", &Memory::blocks, "group"_a)
      .def("resize", &Memory::resize, "group"_a, "blocks"_a)
      .def("copy", &Memory::copy, "group"_a, "source"_a, "target"_a)
      .def(
          "dump",
          [](const Memory& memory, int group, size_t block) {
            return nb::bytes(block_of(memory, group, block), memory.block_bytes(group));
          },
          "group"_a, "block"_a)
      .def(
          "fill",
          [](Memory& memory, int group, size_t block, nb::bytes data) {
            uint8_t* to = block_of(memory, group, block);
            if (data.size() != memory.block_bytes(group))
              throw std::invalid_argument("not a block's bytes");
            std::memcpy(to, data.c_str(), data.size());
          },
          "group"_a, "block"_a, "data"_a)
      .def_prop_ro("bytes", &Memory::bytes);

  bind_matrix(m);

  using Panels = std::vector<int>;
  nb::class_<Recorder> program(m, "Program");
  program.def(nb::init<std::shared_ptr<Pool>>(), "pool"_a)
      .def("slot", [](Recorder& r, int rows,
                      size_t bytes) { return r.program.add_slot(Rows(rows), bytes); })
      .def("rope_table",
           [](Recorder& r, std::vector<double> inv_freq, float scale, double growth,
              int growth_after) {
             if (growth_after < 0) refuse("a context cannot be negative");
             return r.program.add_rope({std::move(inv_freq), scale, growth, growth_after, {}, {}});
           })
      .def("embed",
           [](Recorder& r, bool barrier, int width, Columns out, Panels panels,
              std::shared_ptr<Matrix> table, float factor) {
             if (table->k() != width) refuse("the table's width is not the result's");
             auto n = r.row_node<EmbedNode>("embed", barrier, 0, width, out, panels);
             n->table = std::move(table);
             n->factor = factor;
           })
      .def("copy",
           [](Recorder& r, bool barrier, int rows, int width, Columns out, Panels panels,
              Columns x) {
             r.row_node<CopyNode>("panel", barrier, rows, width, out, panels)->x = view(x);
           })
      // The int8 panel of the row node added last has the columns in the order of the matrix.
      .def("order_columns",
           [](Recorder& r, const Matrix& matrix) { r.order_columns(matrix.order()); })
      .def("outputs",
           [](Recorder& r, bool barrier, int width, Columns out, Panels panels, Columns x) {
             r.row_node<OutputsNode>("outputs", barrier, 1, width, out, panels)->x = view(x);
           })
      .def(
          "rms_norm",
          [](Recorder& r, bool barrier, int rows, int width, Columns out, Panels panels, Columns x,
             std::shared_ptr<Vector> weight, float eps, int heads) {
            if (heads < 1 || width % heads ||
                (weight && int(weight->values.size()) != width / heads))
              refuse("the norm's weight does not fit its columns");
            auto n = r.row_node<RmsNormNode>("norm", barrier, rows, width, out, panels);
            n->x = view(x);
            n->weight = std::move(weight);
            n->eps = eps;
            n->heads = heads;
          },
          "barrier"_a, "rows"_a, "width"_a, "out"_a, "panels"_a, "x"_a, "weight"_a.none(), "eps"_a,
          "heads"_a)
      .def(
          "layer_norm",
          [](Recorder& r, bool barrier, int rows, int width, Columns out, Panels panels, Columns x,
             std::shared_ptr<Vector> weight, std::shared_ptr<Vector> bias, float eps, int heads) {
            if (heads < 1 || width % heads || int(weight->values.size()) != width ||
                (bias && int(bias->values.size()) != width))
              refuse("the norm's weight does not fit its columns");
            auto n = r.row_node<LayerNormNode>("norm", barrier, rows, width, out, panels);
            n->x = view(x);
            n->weight = std::move(weight);
            n->bias = std::move(bias);
            n->eps = eps;
            n->heads = heads;
          },
          "barrier"_a, "rows"_a, "width"_a, "out"_a, "panels"_a, "x"_a, "weight"_a, "bias"_a.none(),
          "eps"_a, "heads"_a)
      .def("glu",
           [](Recorder& r, bool barrier, int rows, int width, Columns out, Panels panels,
              Columns gate, Columns up, int act) {
             auto n = r.row_node<GluNode>("glu", barrier, rows, width, out, panels);
             n->gate = view(gate);
             n->up = view(up);
             n->act = Activation(act);
           })
      .def("activation",
           [](Recorder& r, bool barrier, int rows, int width, Columns out, Panels panels, Columns x,
              int act) {
             auto n = r.row_node<ActivationNode>("activation", barrier, rows, width, out, panels);
             n->x = view(x);
             n->act = Activation(act);
           })
      .def("elementwise",
           [](Recorder& r, bool barrier, int rows, int width, Columns out, Panels panels, Columns x,
              Columns y, int op) {
             auto n = r.row_node<ElementwiseNode>("elementwise", barrier, rows, width, out, panels);
             n->x = view(x);
             n->y = view(y);
             n->op = Elementwise(op);
           })
      .def("scale",
           [](Recorder& r, bool barrier, int rows, int width, Columns out, Panels panels, Columns x,
              float factor) {
             auto n = r.row_node<ScaleNode>("scale", barrier, rows, width, out, panels);
             n->x = view(x);
             n->factor = factor;
           })
      .def("softcap",
           [](Recorder& r, bool barrier, int rows, int width, Columns out, Panels panels, Columns x,
              float cap) {
             auto n = r.row_node<SoftcapNode>("softcap", barrier, rows, width, out, panels);
             n->x = view(x);
             n->cap = cap;
           })
      .def("rope",
           [](Recorder& r, bool barrier, int rows, int width, Columns out, Panels panels, Columns x,
              int table, int style, int pairs, int head_dim) {
             if (head_dim < 1 || width % head_dim || 2 * pairs > head_dim)
               refuse("the rotation does not fit its heads");
             auto n = r.row_node<RopeNode>("rope", barrier, rows, width, out, panels);
             n->x = view(x);
             n->rope = table;
             n->style = style;
             n->pairs = pairs;
             n->head_dim = head_dim;
           })
      .def(
          "linear",
          [](Recorder& r, bool barrier, Columns out, Panels panels, std::shared_ptr<Matrix> weight,
             std::shared_ptr<Vector> bias, Columns residual, const std::string& kind) {
            if (bias && int(bias->values.size()) != weight->n())
              refuse("the bias does not fit the matrix");
            if (!weight->packed()) refuse("a table is no matrix to multiply by");
            for (int a = 0; a < 3; a++)
              if (weight->needs(Act(a)) && panels.at(size_t(a)) < 0)
                refuse("a panel that the matrix needs is missing");
            auto n = std::make_unique<LinearNode>();
            n->weight = std::move(weight);
            n->bias = std::move(bias);
            n->residual = view(residual);
            n->out = view(out);
            for (int i = 0; i < 3; i++) n->panels[i] = panels[size_t(i)];
            r.program.add(std::move(n), kind, barrier);
          },
          "barrier"_a, "out"_a, "panels"_a, "weight"_a, "bias"_a.none(), "residual"_a, "kind"_a)
      .def(
          "attention",
          [](Recorder& r, bool barrier, int rows, Columns out, Columns q, Columns k, Columns v,
             int heads, int kv_heads, int head_dim, int window, float scale, float softcap,
             std::shared_ptr<Vector> sinks, std::shared_ptr<Memory> memory, int group,
             size_t layer_offset, int type) {
            if (kv_heads < 1 || heads % kv_heads || head_dim < 1) refuse("the heads do not divide");
            if (sinks && int(sinks->values.size()) != heads) refuse("one sink per head is needed");
            size_t bytes = size_t(2) * size_t(kv_heads) * size_t(head_dim) * kBlockTokens *
                           kv_element_bytes(KvType(type));
            if ((k.first < 0) != (v.first < 0)) refuse("keys and values come together");
            if (Rows(rows) == Rows::outputs && k.first >= 0) refuse("outputs store no keys");
            if (layer_offset + bytes > memory->block_bytes(group))
              refuse("the layer does not fit its block");
            auto n = std::make_unique<AttentionNode>();
            n->out = view(out);
            n->q = view(q);
            n->k = view(k);
            n->v = view(v);
            n->outputs = Rows(rows) == Rows::outputs;
            if (n->outputs) r.program.needs_runs();
            n->heads = heads;
            n->kv_heads = kv_heads;
            n->head_dim = head_dim;
            n->window = window;
            n->scale = scale;
            n->softcap = softcap;
            n->sinks = std::move(sinks);
            n->memory = std::move(memory);
            n->group = group;
            n->layer_offset = layer_offset;
            n->type = KvType(type);
            r.plan(*n);
            r.program.add(std::move(n), "attention", barrier);
            r.looks_back(group, window);
          },
          "barrier"_a, "rows"_a, "out"_a, "q"_a, "k"_a, "v"_a, "heads"_a, "kv_heads"_a,
          "head_dim"_a, "window"_a, "scale"_a, "softcap"_a, "sinks"_a.none(), "memory"_a, "group"_a,
          "layer_offset"_a, "type"_a)
      .def(
          "run",
          [](Recorder& r, int result, int width, int vocab, Memory& memory, Ints1 ids,
             Ints1 positions, Ints2 spans, std::vector<Ints2> tables, Ints1 outputs, bool eager) {
            Step s{};
            s.ids = ids.data();
            s.positions = positions.data();
            s.spans = spans.data();
            s.outputs = outputs.data();
            s.tokens = int(ids.shape(0));
            s.sequences = int(spans.shape(0));
            s.outputs_count = int(outputs.shape(0));
            if (positions.shape(0) != ids.shape(0) || spans.shape(1) != 3)
              refuse("positions or spans have the wrong shape");
            for (auto& t : tables) {
              if (t.shape(0) != spans.shape(0)) refuse("a block table has the wrong shape");
              s.tables.push_back({t.data(), int(t.shape(1))});
            }
            {
              nb::gil_scoped_release nogil;
              check_step(s, vocab, memory, r.windows, r.states);
              if (r.program.runs_needed()) s.find_runs();
              r.program.run(s, eager);
            }
            size_t rows =
                size_t(r.program.rows_of(result) == Rows::tokens ? s.tokens : s.outputs_count);
            return nb::ndarray<nb::numpy, float, nb::ndim<2>>(
                const_cast<float*>(r.program.slot_data(result)), {rows, size_t(width)}, nb::find(r),
                {int64_t(r.program.slot_stride(result)), 1});
          },
          nb::rv_policy::reference)
      .def("profile", [](Recorder& r, bool on) { r.program.profile(on); })
      .def("times", [](Recorder& r) { return r.program.times(); })
      .def_prop_ro("nodes", [](Recorder& r) { return r.program.nodes(); })
      .def_prop_ro("allocations", [](Recorder& r) { return r.program.allocations(); });

  bind_experts(m, program);
  bind_recurrent(program);
  bind_sampling(m);
}
