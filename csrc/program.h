// A recorded forward: nodes over slots of activations, played with the number of rows as a
// run-time parameter. The Python recorder (backends/cpu/record.py) writes it; nothing here
// knows a model.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codec/pack.h"
#include "family/attention.h"
#include "family/linear.h"
#include "family/rows.h"
#include "memory.h"
#include "threads.h"

namespace gm::inline GM_ISA {

// Input features in the order in which a matrix has its columns.
using Order = std::vector<int32_t>;

// A packed matrix [N, K]: segments of rows, each in its codec.
class Matrix {
 public:
  explicit Matrix(int k) : k_(k) {}
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  // Packs `rows` rows of file bytes behind what is there. Throws std::invalid_argument.
  void append(CodecId codec, int rows, const uint8_t* source, size_t bytes, Pool& pool);
  // Leaves `rows` rows where they lie in the file, for `decode` alone; `owner` keeps them there.
  void keep(CodecId codec, int rows, const uint8_t* source, size_t bytes,
            std::shared_ptr<void> owner);
  // Whether all rows are packed, as linear ops need them.
  bool packed() const { return owners_.empty(); }
  // Makes room for `rows` rows of codes, a scale for every `group` columns; `kind` says what the
  // scales are, `table` has the 16 floats of codes that name them. Throws std::invalid_argument.
  void append_codes(int rows, int bits, int group, Number number, Grouping kind,
                    const float* table = nullptr);
  // Packs rows of what append_codes has made last; the caller has checked their sizes.
  void put_codes(const CodeRows& source, Pool& pool);
  // Of what append_codes has made last; throws std::invalid_argument if it has not.
  const Segment& coded() const;
  // Stored column j of every row belongs to input feature order[j]: panels of int8 are written
  // so. Of all segments. Throws std::invalid_argument.
  void set_order(std::vector<int32_t> order);
  const std::shared_ptr<const Order>& order() const { return order_; }
  int n() const { return n_; }
  int k() const { return k_; }
  size_t bytes() const;
  bool needs(Act act) const;
  const std::vector<Segment>& segments() const { return segments_; }
  void decode(int row, float* out) const;

 private:
  void check_rows(CodecId codec, int rows, size_t bytes) const;
  void decode_packed(const Segment& s, int row, float* out) const;
  int n_ = 0, k_;
  std::vector<Segment> segments_;
  std::vector<Pages> pages_;
  std::vector<std::shared_ptr<void>> owners_;  // of rows that are not packed
  std::vector<std::shared_ptr<const Codebook>> books_;
  std::shared_ptr<const Order> order_;  // null: their own
};

// float32 values of a norm or a bias.
struct Vector {
  std::vector<float> values;
};

// Rows of a slot: one per token of the step, or one per wanted output.
enum class Rows : int { tokens = 0, outputs = 1 };

// Columns of a float32 slot, from `col` on.
struct View {
  int slot = -1;
  int col = 0;
};

// Where a row op's result goes: a float32 slot, panels for linear ops (by Act; -1: none), or both.
struct Target {
  View out;
  int panels[3] = {-1, -1, -1};
  std::shared_ptr<const Order> order;  // of the int8 panel's columns; null: their own
};

struct Step {
  const int32_t *ids, *positions, *spans, *outputs;
  int tokens, sequences, outputs_count;
  struct Table {
    const int32_t* data;
    int width;
  };
  std::vector<Table> tables;  // by state group

  // The wanted outputs as spans and tables of their own: runs of neighbours in one sequence.
  struct Runs {
    std::vector<int32_t> spans;              // [runs][3], first rows counted in outputs
    std::vector<std::vector<int32_t>> data;  // by state group, [runs][width]
    int count = 0;
  };
  Runs runs;  // filled if the program attends to outputs alone
  void find_runs();
};

struct Frame;

// A node is done in phases: all units of one before any of the next. Units of a phase may be
// done in any order, by any worker.
struct Node {
  virtual ~Node() = default;
  virtual int phases() const { return 1; }
  // Once a step, before all work, by one thread.
  virtual void prepare(const Frame&, int /*workers*/) {}
  // Bytes of scratch, which is shared by all nodes: valid through the phases of one node.
  virtual size_t scratch(const Frame&, int /*workers*/) const { return 0; }
  virtual int units(const Frame& f, int phase) const = 0;
  virtual void work(const Frame& f, int phase, int begin, int end, const Worker& w) const = 0;
  // Of a node whose units are rows, each of which needs nothing but the same row of others.
  virtual std::optional<Rows> by_rows() const { return {}; }
  bool barrier = true;  // what it reads or overwrites must be done before it begins
  std::string kind;
};

class Program {
 public:
  explicit Program(std::shared_ptr<Pool> pool);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  int add_slot(Rows rows, size_t row_bytes);
  struct RopeTable {
    std::vector<double> inv_freq;
    float scale;
    double growth;  // with the position, if growth_after is not 0
    int growth_after;
    std::vector<float> cosine, sine;  // [tokens][pairs]
  };
  int add_rope(RopeTable rope);
  void add(std::unique_ptr<Node> node, std::string kind, bool barrier);
  Rows rows_of(int slot) const { return slots_.at(size_t(slot)).rows; }
  // Plays all nodes in one parallel region, or each in its own (eager).
  void run(const Step& step, bool eager);
  // The result of a run: float32 slot memory and its stride in floats.
  const float* slot_data(int slot) const;
  ptrdiff_t slot_stride(int slot) const;
  int nodes() const { return int(nodes_.size()); }
  // A node attends with rows of outputs: steps need their runs.
  void needs_runs() { needs_runs_ = true; }
  bool runs_needed() const { return needs_runs_; }
  // Seconds spent per node since profiling was switched on, with the node's kind.
  void profile(bool on);
  std::vector<std::pair<std::string, double>> times() const;
  uint64_t allocations() const { return allocations_; }

 private:
  friend struct Frame;
  struct Slot {
    Rows rows;
    size_t row_bytes;
    Pages pages;
    size_t capacity = 0;  // rows
  };
  struct Tables;
  class Playing;
  // Nodes of one stage that are done one after the other, unit by unit.
  struct Piece {
    std::vector<const Node*> nodes;
    int phase;
  };
  struct Stage {
    std::vector<Piece> pieces;
    int node;  // the last one in it
  };
  void reserve(const Step& step);
  void place(int index, bool alone, std::vector<Stage>& stages) const;
  void arrange();
  void fill_ropes(const Step& step, int begin, int end);
  std::shared_ptr<Pool> pool_;
  std::vector<Slot> slots_;
  std::vector<RopeTable> ropes_;
  std::unique_ptr<Node> tables_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<Stage> together_, apart_;  // as few stages as may be; each node's phases alone
  std::vector<int> units_;               // of the stages that are played
  Pages scratch_;
  bool profile_ = false;
  bool needs_runs_ = false;
  std::vector<double> seconds_;
  uint64_t allocations_ = 0;
};

// What a node sees of the running program.
struct Frame {
  Program& program;
  const Step& step;
  int rows(Rows r) const { return r == Rows::tokens ? step.tokens : step.outputs_count; }
  int rows_of(int slot) const { return rows(program.slots_[size_t(slot)].rows); }
  ptrdiff_t stride(int slot) const {
    return ptrdiff_t(program.slots_[size_t(slot)].row_bytes / sizeof(float));
  }
  float* at(View v, int row = 0) const {
    auto& s = program.slots_[size_t(v.slot)];
    return reinterpret_cast<float*>(s.pages.data()) + row * stride(v.slot) + v.col;
  }
  uint8_t* bytes(int slot) const { return program.slots_[size_t(slot)].pages.data(); }
  uint8_t* scratch() const { return program.scratch_.data(); }
  const float* cosine(int rope, int row) const { return trig(rope, row, true); }
  const float* sine(int rope, int row) const { return trig(rope, row, false); }

 private:
  const float* trig(int rope, int row, bool cosine) const {
    auto& r = program.ropes_[size_t(rope)];
    return (cosine ? r.cosine : r.sine).data() + size_t(row) * r.inv_freq.size();
  }
};

}  // namespace gm::inline GM_ISA
