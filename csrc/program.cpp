#include "program.h"

#include <chrono>
#include <cmath>
#include <stdexcept>

#include "codec/pack.h"

namespace gm::inline GM_ISA {

void Matrix::append(CodecId codec, int rows, const uint8_t* source, size_t bytes, Pool& pool) {
  if (rows <= 0 || k_ <= 0 || k_ % granule(codec) != 0)
    throw std::invalid_argument("rows or columns do not fit the codec");
  if (bytes != source_row_bytes(codec, k_) * size_t(rows))
    throw std::invalid_argument("source bytes do not match rows and columns");
  Segment s{codec, rows, k_, n_, packed_tile_bytes(codec, k_), nullptr};
  Pages pages(s.tile_bytes * size_t(s.tiles()));
  s.data = pages.data();
  pool.run([&](const Worker& w) { pack(s, source, w); });
  pages_.push_back(std::move(pages));
  segments_.push_back(s);
  n_ += rows;
}

size_t Matrix::bytes() const {
  size_t n = 0;
  for (const Pages& p : pages_) n += p.size();
  return n;
}

bool Matrix::needs(Act act) const {
  for (const Segment& s : segments_)
    if (s.act() == act) return true;
  return false;
}

void Matrix::decode(int row, float* out) const {
  for (const Segment& s : segments_)
    if (row < s.out0 + s.rows) return decode_row(s, row - s.out0, out);
}

int Program::add_slot(Rows rows, size_t row_bytes) {
  slots_.push_back({rows, (row_bytes + 3) / 4 * 4, Pages(), 0});
  return int(slots_.size()) - 1;
}

int Program::add_rope(std::vector<double> inv_freq, float factor) {
  ropes_.push_back({std::move(inv_freq), factor, {}, {}});
  return int(ropes_.size()) - 1;
}

void Program::add(std::unique_ptr<Node> node, std::string kind, bool barrier) {
  node->barrier = barrier;
  node->kind = std::move(kind);
  node->counter = int(nodes_.size());
  nodes_.push_back(std::move(node));
  counters_.reset(new std::atomic<int>[nodes_.size()]);
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
  Frame frame{*this, step};
  size_t scratch = 0;
  for (auto& node : nodes_) scratch = std::max(scratch, node->scratch(frame, pool_->threads()));
  if (scratch > scratch_.size()) {
    scratch_ = Pages(scratch + scratch / 4);
    allocations_++;
  }
  for (size_t i = 0; i < nodes_.size(); i++) counters_[i].store(0, std::memory_order_relaxed);
}

void Program::fill_ropes(const Step& step, const Worker& w) {
  int64_t begin, end;
  w.share(step.tokens, 1, begin, end);
  for (RopeTable& r : ropes_) {
    size_t pairs = r.inv_freq.size();
    for (int64_t t = begin; t < end; t++)
      for (size_t i = 0; i < pairs; i++) {
        double angle = double(step.positions[t]) * r.inv_freq[i];
        r.cosine[size_t(t) * pairs + i] = float(std::cos(angle)) * r.scale;
        r.sine[size_t(t) * pairs + i] = float(std::sin(angle)) * r.scale;
      }
  }
}

void Program::run(const Step& step, bool eager) {
  reserve(step);
  Frame frame{*this, step};
  if (eager) {
    pool_->run([&](const Worker& w) { fill_ropes(step, w); });
    for (auto& node : nodes_) pool_->run([&](const Worker& w) { node->play(frame, w); });
    return;
  }
  using Clock = std::chrono::steady_clock;
  pool_->run([&](const Worker& w) {
    fill_ropes(step, w);
    auto last = Clock::now();
    for (size_t i = 0; i < nodes_.size(); i++) {
      if (nodes_[i]->barrier) w.barrier();
      nodes_[i]->play(frame, w);
      if (profile_) {
        w.barrier();
        auto now = Clock::now();
        if (w.id == 0) seconds_[i] += std::chrono::duration<double>(now - last).count();
        last = now;
      }
    }
  });
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
