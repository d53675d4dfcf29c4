#include "program.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <stdexcept>

#include "codec/pack.h"

namespace gm::inline GM_ISA {

void Matrix::check_rows(CodecId codec, int rows, size_t bytes) const {
  if (rows <= 0 || k_ <= 0 || k_ % granule(codec) != 0)
    throw std::invalid_argument("rows or columns do not fit the codec");
  if (bytes != source_row_bytes(codec, k_) * size_t(rows))
    throw std::invalid_argument("source bytes do not match rows and columns");
}

void Matrix::append(CodecId codec, int rows, const uint8_t* source, size_t bytes, Pool& pool) {
  check_rows(codec, rows, bytes);
  if (!packed()) throw std::invalid_argument("rows are packed or kept, not both");
  Segment s{codec, rows, k_, n_, packed_tile_bytes(codec, k_), nullptr};
  Pages pages(s.tile_bytes * size_t(s.tiles()));
  s.data = pages.data();
  pool.each(s.tiles(), 1, [&](int64_t begin, int64_t end, const Worker&) {
    pack(s, source, int(begin), int(end));
  });
  pages_.push_back(std::move(pages));
  segments_.push_back(s);
  n_ += rows;
}

void Matrix::keep(CodecId codec, int rows, const uint8_t* source, size_t bytes,
                  std::shared_ptr<void> owner) {
  check_rows(codec, rows, bytes);
  if (!pages_.empty()) throw std::invalid_argument("rows are packed or kept, not both");
  segments_.push_back({codec, rows, k_, n_, 0, const_cast<uint8_t*>(source)});
  owners_.push_back(std::move(owner));
  n_ += rows;
}

void Matrix::append_codes(int rows, int bits, int group, Number number, Grouping kind,
                          const float* table) {
  if (rows <= 0 || k_ <= 0 || k_ % 32 != 0)
    throw std::invalid_argument("rows or columns do not fit");
  if (!packed()) throw std::invalid_argument("rows are packed or kept, not both");
  kind.halves = number == Number::e2m1;
  if (kind.halves ? group != 16 : group <= 0 || (group % 32 != 0 && group < k_))
    throw std::invalid_argument("a group is no multiple of 32 columns");
  CodecId codec = grouped_codec(bits, kind.beside, number);
  if (codec == CodecId::count) throw std::invalid_argument("no codes have so many bits");
  if (kind.halves != (kind.type == ScaleType::e4m3) ||
      (number == Number::table) != (table != nullptr))
    throw std::invalid_argument("scales or a table do not fit the codes");
  if (!kind.halves) kind.blocks = group >= k_ ? k_ / 32 : group / 32;
  if (table) books_.push_back(std::make_shared<const Codebook>(table));
  kind.book = table ? books_.back().get() : nullptr;
  Segment s{codec, rows, k_, n_, packed_tile_bytes(codec, k_, kind), nullptr, kind};
  Pages pages(s.tile_bytes * size_t(s.tiles()));
  s.data = pages.data();
  pages_.push_back(std::move(pages));
  segments_.push_back(s);
  n_ += rows;
}

const Segment& Matrix::coded() const {
  if (segments_.empty() || source_row_bytes(segments_.back().codec, k_) != 0)
    throw std::invalid_argument("there is no room for codes");
  return segments_.back();
}

void Matrix::put_codes(const CodeRows& source, Pool& pool) {
  const Segment& s = coded();
  if (source.start % kLanes != 0 || source.start < 0 || source.rows > s.rows - source.start)
    throw std::invalid_argument("the rows of codes are not where tiles are");
  std::atomic<bool> exact{true};
  pool.each(source.rows, kLanes, [&](int64_t begin, int64_t end, const Worker&) {
    if (!pack_codes(s, source, int(begin), int(end))) exact = false;
  });
  if (!exact) throw std::invalid_argument("a scale is not exact in its type");
}

void Matrix::set_order(std::vector<int32_t> order) {
  std::vector<bool> seen(order.size());
  if (order.size() != size_t(k_)) throw std::invalid_argument("an order of other columns");
  for (int32_t i : order) {
    if (i < 0 || i >= k_ || seen[size_t(i)]) throw std::invalid_argument("this is no order");
    seen[size_t(i)] = true;
  }
  for (const Segment& s : segments_)
    if (s.act() == Act::q8 && source_row_bytes(s.codec, k_) != 0)
      throw std::invalid_argument("blocks of a file have their own order");
  order_ = std::make_shared<const Order>(std::move(order));
}

size_t Matrix::bytes() const {
  size_t n = 0;
  for (const Pages& p : pages_) n += p.size();
  return n;
}

// Columns by input feature.
void Matrix::decode_packed(const Segment& s, int row, float* out) const {
  if (!order_ || s.act() != Act::q8) return decode_row(s, row, out);
  thread_local std::vector<float> stored;
  stored.resize(size_t(k_));
  decode_row(s, row, stored.data());
  for (int i = 0; i < k_; i++) out[(*order_)[size_t(i)]] = stored[size_t(i)];
}

bool Matrix::needs(Act act) const {
  for (const Segment& s : segments_)
    if (s.act() == act) return true;
  return false;
}

void Matrix::decode(int row, float* out) const {
  for (const Segment& s : segments_)
    if (row < s.out0 + s.rows) {
      if (packed()) return decode_packed(s, row - s.out0, out);
      const size_t bytes = source_row_bytes(s.codec, k_);
      return decode_source(s.codec, k_, s.data + bytes * size_t(row - s.out0), out);
    }
}

// The sines and cosines of a step's positions. A row of them is made with the rows that need it.
struct Program::Tables final : Node {
  int units(const Frame& f, int) const override { return f.step.tokens; }
  void work(const Frame& f, int, int begin, int end, const Worker&) const override {
    f.program.fill_ropes(f.step, begin, end);
  }
  std::optional<Rows> by_rows() const override { return Rows::tokens; }
};

Program::Program(std::shared_ptr<Pool> pool)
    : pool_(std::move(pool)), tables_(std::make_unique<Tables>()) {}

void Step::find_runs() {
  runs = {};
  runs.data.resize(tables.size());
  int sequence = 0, last = -1, of = -1;
  for (int i = 0; i < outputs_count; i++) {
    const int row = outputs[i];
    if (sequence > 0 && row < spans[3 * sequence]) sequence = 0;
    while (row >= spans[3 * sequence] + spans[3 * sequence + 1]) sequence++;
    if (of == sequence && row == last + 1) {
      runs.spans[size_t(3 * runs.count - 2)]++;
    } else {
      runs.spans.insert(runs.spans.end(),
                        {i, 1, spans[3 * sequence + 2] + row - spans[3 * sequence]});
      for (size_t g = 0; g < tables.size(); g++) {
        const int32_t* table = tables[g].data + size_t(sequence) * size_t(tables[g].width);
        runs.data[g].insert(runs.data[g].end(), table, table + tables[g].width);
      }
      runs.count++;
    }
    last = row;
    of = sequence;
  }
}

int Program::add_slot(Rows rows, size_t row_bytes) {
  slots_.push_back({rows, (row_bytes + 3) / 4 * 4, Pages(), 0});
  return int(slots_.size()) - 1;
}

int Program::add_rope(RopeTable rope) {
  ropes_.push_back(std::move(rope));
  return int(ropes_.size()) - 1;
}

void Program::add(std::unique_ptr<Node> node, std::string kind, bool barrier) {
  node->barrier = barrier;
  node->kind = std::move(kind);
  nodes_.push_back(std::move(node));
  together_.clear();
  seconds_.assign(nodes_.size(), 0.0);
}

// Grows what the step needs; a step no larger than one before allocates nothing.
void Program::reserve(const Step& step) {
  for (Slot& s : slots_) {
    size_t rows = size_t(s.rows == Rows::tokens ? step.tokens : step.outputs_count);
    if (rows <= s.capacity) continue;
    s.pages = Pages((rows * s.row_bytes + 4095) / 4096 * 4096 + 64);
    s.capacity = rows;
    allocations_++;
  }
  for (RopeTable& r : ropes_) {
    size_t n = size_t(step.tokens) * r.inv_freq.size();
    if (r.cosine.size() >= n) continue;
    r.cosine.resize(n);
    r.sine.resize(n);
    allocations_++;
  }
  const Frame frame{*this, step};
  size_t scratch = 0;
  for (auto& node : nodes_) {
    node->prepare(frame, pool_->threads());
    scratch = std::max(scratch, node->scratch(frame, pool_->threads()));
  }
  if (scratch > scratch_.size()) {
    scratch_ = Pages(scratch + scratch / 4);
    allocations_++;
  }
}

void Program::fill_ropes(const Step& step, int begin, int end) {
  for (RopeTable& r : ropes_) {
    size_t pairs = r.inv_freq.size();
    for (int t = begin; t < end; t++) {
      float scale = r.scale;
      if (r.growth_after)
        scale *= float(1 + r.growth * std::log1p(double(step.positions[t] / r.growth_after)));
      for (size_t i = 0; i < pairs; i++) {
        double angle = double(step.positions[t]) * r.inv_freq[i];
        r.cosine[size_t(t) * pairs + i] = float(std::cos(angle)) * scale;
        r.sine[size_t(t) * pairs + i] = float(std::sin(angle)) * scale;
      }
    }
  }
}

// Puts a node's phases into the last stage and new ones behind it.
void Program::place(int index, bool alone, std::vector<Stage>& stages) const {
  const Node& node = *nodes_[size_t(index)];
  const int phases = node.phases();
  // Phases share scratch with other nodes' phases, so such a node begins a stage of its own.
  if (alone || node.barrier || phases > 1 || stages.empty()) stages.push_back({});
  for (int phase = 0; phase < phases; phase++) {
    if (phase > 0) stages.push_back({});
    Stage& stage = stages.back();
    stage.node = index;
    if (node.by_rows())
      for (Piece& piece : stage.pieces)
        if (piece.nodes[0]->by_rows() == node.by_rows()) {
          piece.nodes.push_back(&node);
          return;
        }
    stage.pieces.push_back({{&node}, phase});
  }
}

void Program::arrange() {
  together_.assign(1, {{{{tables_.get()}, 0}}, 0});
  apart_ = together_;
  for (int i = 0; i < nodes(); i++) {
    // Rows of the tables are made by whoever needs them: the first node needs no other stage.
    place(i, false, together_);
    place(i, true, apart_);
  }
  units_.resize(apart_.size());
}

// Stages [from, to) of a list, as one region.
class Program::Playing final : public Region {
 public:
  Playing(Program& program, const Frame& frame, const std::vector<Stage>& all, size_t from,
          size_t to)
      : program_(program), frame_(frame), stages_(all.data() + from), count_(int(to - from)) {
    for (int s = 0; s < count_; s++) {
      int n = 0;
      for (const Piece& piece : stages_[s].pieces) n += units_of(piece);
      program_.units_[size_t(s)] = n;
    }
  }
  int stages() const override { return count_; }
  int units(int stage) const override { return program_.units_[size_t(stage)]; }
  void work(int stage, int begin, int end, const Worker& w) const override {
    int first = 0;  // unit of the piece
    for (const Piece& piece : stages_[stage].pieces) {
      const bool only = stages_[stage].pieces.size() == 1;
      const int n = only ? end : units_of(piece);
      const int from = std::max(begin - first, 0), to = std::min(end - first, n);
      if (from < to)
        for (const Node* node : piece.nodes) node->work(frame_, piece.phase, from, to, w);
      first += n;
    }
  }
  void passed(int stage) override {
    if (!program_.profile_) return;
    auto now = Clock::now();
    program_.seconds_[size_t(stages_[stage].node)] +=
        std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  int units_of(const Piece& piece) const { return piece.nodes[0]->units(frame_, piece.phase); }
  Program& program_;
  const Frame& frame_;
  const Stage* stages_;
  int count_;
  Clock::time_point last_ = Clock::now();
};

void Program::run(const Step& step, bool eager) {
  if (together_.empty()) arrange();
  reserve(step);
  const Frame frame{*this, step};
  const std::vector<Stage>& all = eager || profile_ ? apart_ : together_;
  const size_t at_once = eager ? 1 : all.size();
  for (size_t from = 0; from < all.size(); from += at_once) {
    Playing playing(*this, frame, all, from, from + at_once);
    pool_->run(playing);
  }
}

const float* Program::slot_data(int slot) const {
  return reinterpret_cast<const float*>(slots_.at(size_t(slot)).pages.data());
}

ptrdiff_t Program::slot_stride(int slot) const {
  return ptrdiff_t(slots_.at(size_t(slot)).row_bytes / sizeof(float));
}

void Program::profile(bool on) {
  profile_ = on;
  seconds_.assign(nodes_.size(), 0.0);
}

std::vector<std::pair<std::string, double>> Program::times() const {
  std::vector<std::pair<std::string, double>> all;
  for (size_t i = 0; i < nodes_.size(); i++) all.emplace_back(nodes_[i]->kind, seconds_[i]);
  return all;
}

}  // namespace gm::inline GM_ISA
