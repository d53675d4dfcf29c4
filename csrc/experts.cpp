#include "experts.h"

#include <algorithm>
#include <stdexcept>

#include "codec/pack.h"

namespace gm::inline GM_ISA {

// ---------------------------------------------------------------- weights

Experts::Experts(int count, int k) : k_(k) {
  if (count < 1 || k < 1) throw std::invalid_argument("no experts, or no columns");
  experts_.resize(size_t(count));
}

uint8_t* Experts::room(int expert, size_t part, CodecId codec, int rows, size_t bytes) {
  if (part == shelves_.size()) shelves_.push_back({codec, rows, Pages(bytes * size_t(count()))});
  if (part < shelves_.size() && shelves_[part].codec == codec && shelves_[part].rows == rows)
    return shelves_[part].pages.data() + bytes * size_t(expert);
  others_.emplace_back(bytes);
  return others_.back().data();
}

void Experts::append(int expert, CodecId codec, int rows, const uint8_t* source, size_t bytes,
                     Pool& pool) {
  if (expert < 0 || expert >= count()) throw std::invalid_argument("no such expert");
  if (rows <= 0 || k_ % granule(codec) != 0)
    throw std::invalid_argument("rows or columns do not fit the codec");
  if (bytes != source_row_bytes(codec, k_) * size_t(rows))
    throw std::invalid_argument("source bytes do not match rows and columns");
  auto& segments = experts_[size_t(expert)];
  const int first = segments.empty() ? 0 : segments.back().out0 + segments.back().rows;
  Segment s{codec, rows, k_, first, packed_tile_bytes(codec, k_), nullptr};
  s.data = room(expert, segments.size(), codec, rows, s.tile_bytes * size_t(s.tiles()));
  pool.each(s.tiles(), 1, [&](int64_t begin, int64_t end, const Worker&) {
    pack(s, source, int(begin), int(end));
  });
  segments.push_back(s);
  needs_[int(s.act())] = true;
}

void Experts::adopt(int expert, std::shared_ptr<Matrix> matrix) {
  if (expert < 0 || expert >= count() || !experts_[size_t(expert)].empty())
    throw std::invalid_argument("no such expert, or it has rows");
  if (matrix->k() != k_ || matrix->order())
    throw std::invalid_argument("a matrix of other columns");
  experts_[size_t(expert)] = matrix->segments();
  for (int a = 0; a < 3; a++) needs_[a] = needs_[a] || matrix->needs(Act(a));
  adopted_.push_back(std::move(matrix));
}

bool Experts::even() const {
  for (auto& segments : experts_)
    if (segments.empty() || segments.back().out0 + segments.back().rows != n() ||
        linear_units(segments) != linear_units(experts_[0]))
      return false;
  return true;
}

size_t Experts::bytes() const {
  size_t n = 0;
  for (const Shelf& shelf : shelves_) n += shelf.pages.size();
  for (const Pages& p : others_) n += p.size();
  for (auto& matrix : adopted_) n += matrix->bytes();
  return n;
}

// ------------------------------------------------------------------- node

namespace {

// Cuts memory into arrays.
class Cutter {
 public:
  explicit Cutter(uint8_t* at) : at_(at), begin_(at) {}
  template <class T>
  T* take(size_t count) {
    at_ += (64 - reinterpret_cast<uintptr_t>(at_) % 64) % 64;
    T* here = reinterpret_cast<T*>(at_);
    at_ += count * sizeof(T);
    return here;
  }
  size_t taken() const { return size_t(at_ - begin_); }
  uint8_t* at() const { return at_; }
  void back(uint8_t* to) { at_ = to; }

 private:
  uint8_t *at_, *begin_;
};

// Rows a whole number of cache lines apart, and not of pages.
ptrdiff_t stride_of(int width) { return (width + 15) / 16 * 16 + 16; }

}  // namespace

// What the scratch holds: all of it the step's.
struct ExpertsNode::Space {
  Places p;
  uint8_t* single[3];    // by Act: each row as a panel of its own
  uint8_t* together[3];  // the rows of an expert as panels, at its first place
  uint8_t* middle[3];    // the same of what down reads
  float* hidden;         // [places, 2h]
  float* results;        // [places, d]; over `single` and `together`, whose time is past
  size_t bytes;
};

ExpertsNode::Space ExpertsNode::space(const Frame& f) const {
  const size_t rows = size_t(f.rows_of(out.slot)), experts = size_t(routing.experts);
  const size_t places = rows * size_t(routing.used);
  Space s{};
  Cutter cut(f.scratch());
  for (int32_t** p : {&s.p.chosen, &s.p.place, &s.p.choice, &s.p.expert})
    *p = cut.take<int32_t>(places);
  s.p.weights = cut.take<float>(places);
  s.p.start = cut.take<int32_t>(experts + 1);
  s.p.active = cut.take<int32_t>(experts);
  s.p.count = cut.take<int32_t>(1);
  s.hidden = cut.take<float>(places * size_t(stride_of(gate_up->n())));
  for (int a = 0; a < 3; a++)
    if (down->needs(Act(a)))
      s.middle[a] = cut.take<uint8_t>(places * panel_row_bytes(Act(a), down->k()));
  s.results = cut.take<float>(0);
  for (int a = 0; a < 3; a++) {
    if (!gate_up->needs(Act(a))) continue;
    const size_t bytes = panel_row_bytes(Act(a), gate_up->k());
    s.single[a] = cut.take<uint8_t>(rows * bytes);
    s.together[a] = cut.take<uint8_t>(places * bytes);
  }
  uint8_t* end = cut.at();
  cut.back(reinterpret_cast<uint8_t*>(s.results));
  cut.take<float>(places * size_t(stride_of(down->n())));
  s.bytes = size_t(std::max(end, cut.at()) - f.scratch());
  return s;
}

size_t ExpertsNode::scratch(const Frame& f, int) const { return space(f).bytes + 64; }

// How many experts may be chosen: what there are units for, since that is asked before they are.
static int most_active(const Routing& r, int rows) {
  return int(std::min<int64_t>(r.experts, int64_t(rows) * r.used));
}

// Tiles of a unit: one, but of huge mixtures more.
int ExpertsNode::grain(int rows, const Experts& matrix) const {
  return 1 +
         int(int64_t(most_active(routing, rows)) * linear_units(matrix.of(0)) / (kMostUnits / 2));
}

int ExpertsNode::units_of(int rows, const Experts& matrix) const {
  const int size = grain(rows, matrix);
  return most_active(routing, rows) * ((linear_units(matrix.of(0)) + size - 1) / size);
}

int ExpertsNode::units(const Frame& f, int phase) const {
  const int rows = f.rows_of(out.slot);
  if (rows == 0) return 0;
  switch (phase) {
    case 1:
      return 1;
    case 2:
      return most_active(routing, rows);
    case 3:
      return units_of(rows, *gate_up);
    case 4:
      return rows * routing.used;
    case 5:
      return units_of(rows, *down);
    default:
      return rows;
  }
}

void ExpertsNode::work(const Frame& f, int phase, int begin, int end, const Worker&) const {
  const Space s = space(f);
  const int rows = f.rows_of(out.slot);
  if (phase == 1) return sort_places(routing, rows, s.p);
  if (phase == 3) return multiply(s, rows, true, begin, end);
  if (phase == 5) return multiply(s, rows, false, begin, end);
  for (int i = begin; i < end; i++) switch (phase) {
      case 0:
        choose(f, s, i);
        break;
      case 2:
        if (i < *s.p.count) gather(f, s, s.p.active[i]);
        break;
      case 4:
        meet(s, i);
        break;
      default:
        sum(f, s, i);
    }
}

void ExpertsNode::choose(const Frame& f, const Space& s, int row) const {
  const size_t at = size_t(row) * size_t(routing.used);
  route_row(routing, f.at(logits, row), selection ? selection->values.data() : nullptr,
            result_scale ? result_scale->values.data() : nullptr, s.p.chosen + at,
            s.p.weights + at);
  if (routing.weighs_input) return;
  const int k = gate_up->k();
  for (int a = 0; a < 3; a++)
    if (s.single[a])
      write_panel_row(Act(a), RowBlocks(1, Act(a)), 0, f.at(x, row), k,
                      s.single[a] + size_t(row) * panel_row_bytes(Act(a), k));
}

// Brings the rows of an expert together; of a single one the panel serves as it is.
void ExpertsNode::gather(const Frame& f, const Space& s, int expert) const {
  const int first = s.p.start[expert], count = s.p.start[expert + 1] - first, k = gate_up->k();
  thread_local std::vector<float> weighed;
  if (count == 1 && !routing.weighs_input) return;
  for (int a = 0; a < 3; a++) {
    if (!s.together[a]) continue;
    const size_t bytes = panel_row_bytes(Act(a), k);
    const RowBlocks blocks(count, Act(a));
    uint8_t* panel = s.together[a] + size_t(first) * bytes;
    for (int i = 0; i < count; i++) {
      const int choice = s.p.choice[first + i], row = choice / routing.used;
      if (routing.weighs_input) {
        weighed.resize(size_t(k));
        gm::scale(f.at(x, row), s.p.weights[choice], k, weighed.data());
        write_panel_row(Act(a), blocks, i, weighed.data(), k, panel);
      } else {
        copy_panel_row(Act(a), blocks, i, s.single[a] + size_t(row) * bytes, k, panel);
      }
    }
  }
}

// Units of gate and up (`first`) or of down: tiles of one active expert after the other.
void ExpertsNode::multiply(const Space& s, int rows, bool first, int begin, int end) const {
  const Experts& matrix = first ? *gate_up : *down;
  const Vector* bias = (first ? gate_up_bias : down_bias).get();
  const int tiles = linear_units(matrix.of(0)), size = grain(rows, matrix);
  const int each = (tiles + size - 1) / size, n = matrix.n(), k = matrix.k();
  for (int at = begin; at < end;) {
    const int active = at / each, from = at % each;
    if (active >= *s.p.count) return;
    const int to = std::min(each, from + end - at), expert = s.p.active[active];
    const size_t place = size_t(s.p.start[expert]);
    LinearArgs a{};
    a.segments = &matrix.of(expert);
    a.rows = s.p.start[expert + 1] - int(place);
    a.out_stride = stride_of(n);
    a.out = (first ? s.hidden : s.results) + ptrdiff_t(place) * a.out_stride;
    a.bias = bias ? bias->values.data() + size_t(expert) * size_t(n) : nullptr;
    const bool alone = first && a.rows == 1 && !routing.weighs_input;
    const size_t row = alone ? size_t(s.p.choice[place] / routing.used) : place;
    for (int i = 0; i < 3; i++) {
      const uint8_t* panels = !first ? s.middle[i] : alone ? s.single[i] : s.together[i];
      if (panels) a.panels[i] = panels + row * panel_row_bytes(Act(i), k);
    }
    linear(a, from * size, std::min(to * size, tiles));
    at += to - from;
  }
}

// Gate meets up; the result is written as down reads it, among its expert's rows.
void ExpertsNode::meet(const Space& s, int place) const {
  thread_local std::vector<float> kept;
  const int k = down->k(), expert = s.p.expert[place], first = s.p.start[expert];
  kept.resize(size_t(k));
  gate_row(gate, limit, s.hidden + place * stride_of(gate_up->n()), k, kept.data());
  for (int a = 0; a < 3; a++) {
    if (!s.middle[a]) continue;
    const RowBlocks blocks(s.p.start[expert + 1] - first, Act(a));
    write_panel_row(Act(a), blocks, place - first, kept.data(), k,
                    s.middle[a] + size_t(first) * panel_row_bytes(Act(a), k));
  }
}

void ExpertsNode::sum(const Frame& f, const Space& s, int row) const {
  const size_t at = size_t(row) * size_t(routing.used);
  float* to = f.at(out, row);
  weighted_sum(s.results, stride_of(down->n()), s.p.place + at,
               routing.weighs_input ? nullptr : s.p.weights + at, routing.used, down->n(), to);
  if (residual.slot >= 0) elementwise(Elementwise::add, f.at(residual, row), to, down->n(), to);
}

}  // namespace gm::inline GM_ISA
