// Packing, decoding and multiplying, for every codec, against double precision; the bits of a
// row must not depend on the rows beside it or on the workers.
// links: codec/pack.cpp family/panel.cpp
#include "../family/linear.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>

#include "../codec/pack.h"
#include "../threads.h"
#include "formats.h"

namespace {

using namespace gm;
using test::expect;
using test::Random;

// Bytes at a multiple of 64, with guards on both sides that must stay.
class Buffer {
 public:
  explicit Buffer(size_t bytes, uint8_t fill) : bytes_(bytes) {
    size_t total = (bytes + 2 * kGuard + 63) / 64 * 64;
    all_ = static_cast<uint8_t*>(std::aligned_alloc(64, total));
    std::memset(all_, 0xa5, total);
    std::memset(data(), fill, bytes);
  }
  ~Buffer() { std::free(all_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  uint8_t* data() const { return all_ + kGuard; }
  float* floats() const { return reinterpret_cast<float*>(data()); }
  bool guarded() const {
    auto kept = [](uint8_t b) { return b == 0xa5; };
    return std::all_of(all_, all_ + kGuard, kept) &&
           std::all_of(data() + bytes_, data() + bytes_ + kGuard, kept);
  }

 private:
  static constexpr size_t kGuard = 64;
  size_t bytes_;
  uint8_t* all_;
};

// What a matrix is made of: blocks of a file, or codes in groups of columns.
struct Kind {
  CodecId codec = CodecId::count;
  int bits = 0, group = 0;
  ScaleType type = ScaleType::f16;
  Beside beside = Beside::nothing;
  Number number = Number::whole;
  Kind(CodecId c) : codec(c) {}
  Kind(int b, int g, ScaleType t, Beside with)
      : codec(grouped_codec(b, with)), bits(b), group(g), type(t), beside(with) {}
  float factor = 1;
  bool divide = false;
  const Codebook* book = nullptr;
  explicit Kind(const Codebook& b, int g, ScaleType t)
      : codec(CodecId::codes4_book), bits(4), group(g), type(t), number(Number::table), book(&b) {}
  Kind(float f, bool d)  // NVFP4
      : codec(CodecId::nvfp4),
        bits(4),
        group(16),
        type(ScaleType::e4m3),
        number(Number::e2m1),
        factor(f),
        divide(d) {}
  Kind(Number what, int g, ScaleType t)
      : codec(grouped_codec(8, Beside::nothing, what)), bits(8), group(g), type(t), number(what) {}
  int unit() const { return bits ? 32 : granule(codec); }
};

// Rows of a matrix: their bytes in the file, or their codes; and packed.
struct Matrix {
  Kind kind;
  CodecId codec;
  int rows, k;
  std::vector<std::vector<uint8_t>> source;
  std::vector<test::Value> values;  // of codes in groups
  std::vector<double> steps;        // what kernels round them to, of tables of floats
  std::unique_ptr<Buffer> packed;
  Segment segment;

  Matrix(Kind what, int n, int width, int out0, Random& random, bool extreme)
      : kind(what), codec(what.codec), rows(n), k(width) {
    if (kind.bits)
      pack_groups(out0, random, extreme);
    else
      pack_blocks(out0, random, extreme);
    expect(packed->guarded(), "packing %s writes outside", test::name_of(codec));
  }

  void make_room(int out0, const Grouping& grouping) {
    segment = {codec, rows, k, out0, packed_tile_bytes(codec, k, grouping), nullptr, grouping};
    packed = std::make_unique<Buffer>(size_t(segment.tiles()) * segment.tile_bytes, uint8_t(0));
    segment.data = packed->data();
  }

  void pack_blocks(int out0, Random& random, bool extreme) {
    const CodecId c = codec;
    const int n = rows, width = k;
    std::vector<uint8_t> file;
    for (int r = 0; r < n; r++) {
      source.push_back(test::random_row(c, width, random, extreme));
      file.insert(file.end(), source.back().begin(), source.back().end());
    }
    expect(source_row_bytes(c, width) == source[0].size(), "source_row_bytes of %s",
           test::name_of(c));
    make_room(out0, {});
    const int tiles = segment.tiles();
    for (int i = 0; i < 3; i++) pack(segment, file.data(), tiles * i / 3, tiles * (i + 1) / 3);
  }

  // A value that the type of the scales holds.
  float exact(float x) const {
    if (kind.type == ScaleType::f32) return x;
    if (kind.type == ScaleType::e4m3) {  // random codes: x is only their seed
      const int c = int(std::fabs(x) * 1e6f) % 127;
      return float(test::small_float(c, 4, 7));
    }
    return kind.type == ScaleType::f16 ? half_to_float(float_to_half(x))
                                       : bf16_to_float(float_to_bf16(x));
  }

  void pack_groups(int out0, Random& random, bool extreme) {
    const int groups = (k + kind.group - 1) / kind.group, most = (1 << kind.bits) - 1;
    // Floats: the largest there are and the smallest, which have no exponent; none is infinite.
    const int ends[] = {0, 1, 7, 0x80, 0x83, 0x7e, 0xfe, 0x7b, 0xfb};
    auto code = [&] {
      if (kind.bits == 4 || kind.number == Number::whole)
        return uint8_t(extreme ? random.below(2) * most : random.below(most + 1));
      const int c = extreme ? ends[random.below(9)] : random.below(256);
      const int last = kind.number == Number::e4m3 ? 0x7e : 0x7b;
      return uint8_t((c & 127) > last ? (c & 128) | last : c);
    };
    std::vector<uint8_t> codes(size_t(rows * k)), zeros(size_t(rows * groups));
    std::vector<float> scales(zeros.size()), others(zeros.size());
    const bool low = kind.beside == Beside::lows;
    for (auto& c : codes) c = code();
    for (size_t i = 0; i < zeros.size(); i++) {
      zeros[i] = code();
      scales[i] = exact(random.below(12) ? random.uniform(-0.02f, 0.02f) : 0.0f);
      others[i] = exact(low ? random.uniform(-0.1f, 0.1f) : random.uniform(0, float(most)));
    }
    auto zero_of = [&](size_t at) {
      return kind.beside == Beside::zeros ? double(zeros[at]) : double(others[at]);
    };
    for (int r = 0; r < rows; r++)
      for (int i = 0; i < k; i++) {
        const size_t at = size_t(r * groups + i / kind.group);
        const double s = double(scales[at]), q = codes[size_t(r * k + i)];
        const double half = kind.bits == 8 ? 128 : 0;  // as the kernels part them
        if (kind.number == Number::e2m1)
          values.push_back({test::e2m1_value(int(q)) *
                            (kind.divide ? s / double(kind.factor) : s * double(kind.factor))});
        else if (kind.number == Number::table) {
          values.push_back({s * double(kind.book->values[int(q)])});
          steps.push_back(std::fabs(s) * double(kind.book->unit));
        } else if (kind.number != Number::whole)
          values.push_back({s * (kind.number == Number::e4m3 ? test::small_float(int(q), 4, 7)
                                                             : test::small_float(int(q), 5, 15))});
        else if (kind.beside == Beside::nothing)
          values.push_back({s * (q - (1 << (kind.bits - 1))), 0});
        else if (low)
          values.push_back({s * (q - half), double(others[at]) + half * s});
        else
          values.push_back({s * (q - half), s * (half - zero_of(at))});
      }
    Grouping grouping;
    grouping.halves = kind.number == Number::e2m1;
    if (!grouping.halves) grouping.blocks = kind.group >= k ? k / 32 : kind.group / 32;
    grouping.type = kind.type;
    grouping.beside = kind.beside;
    grouping.factor = kind.factor;
    grouping.divide = kind.divide;
    grouping.book = kind.book;
    make_room(out0, grouping);
    for (int start = 0, n; start < rows; start += n) {  // in two pieces, where it has two tiles
      n = start == 0 && rows > kLanes ? kLanes : rows - start;
      size_t g = size_t(start * groups);
      CodeRows part{start,
                    n,
                    codes.data() + start * k,
                    scales.data() + g,
                    zeros.data() + g,
                    others.data() + g};
      for (int i = 0; i < 3; i++)
        expect(pack_codes(segment, part, n * i / 3, n * (i + 1) / 3), "scales of %s are not exact",
               test::name_of(codec));
    }
    if (kind.type == ScaleType::f32) return;
    scales[0] = 0.1f;
    CodeRows again{0, 1, codes.data(), scales.data(), zeros.data(), others.data()};
    Buffer other(segment.tile_bytes, uint8_t(0));
    Segment apart = segment;
    apart.data = other.data();
    expect(!pack_codes(apart, again, 0, 1), "a scale that is rounded");
  }

  test::Value at(int row, int i) const {
    if (kind.bits) return values[size_t(row * k + i)];
    return test::weight_at(codec, source[size_t(row)].data(), i);
  }
};

// What the kernels make of a row of activations, in double precision.
std::vector<double> seen(Act act, const std::vector<float>& x) {
  std::vector<double> y(x.begin(), x.end());
  if (act == Act::bf16)
    for (size_t i = 0; i < x.size(); i++) y[i] = double(bf16_to_float(float_to_bf16(x[i])));
  if (act != Act::q8) return y;
  for (size_t b = 0; b < x.size(); b += 32) {
    float largest = 0;
    for (size_t i = b; i < b + 32; i++) largest = std::max(largest, std::fabs(x[i]));
    float inverse = largest > 0 ? 127.0f / largest : 0.0f;
    for (size_t i = b; i < b + 32; i++)
      y[i] = double(largest / 127.0f) * double(std::nearbyintf(x[i] * inverse));
  }
  return y;
}

using Rows = std::vector<std::vector<float>>;

struct Extra {
  const float* bias = nullptr;
  const float* residual = nullptr;
};

// The outputs of `linear` for the first m rows of x, each n wide.
Rows multiply(const std::vector<const Matrix*>& matrices, const Rows& x, int m, int n, Pool& pool,
              Extra extra) {
  const int k = matrices[0]->k;
  std::unique_ptr<Buffer> panels[3];
  LinearArgs args{};
  std::vector<Segment> segments;
  for (const Matrix* matrix : matrices) {
    segments.push_back(matrix->segment);
    Act act = matrix->segment.act();
    auto& panel = panels[int(act)];
    if (panel) continue;
    panel = std::make_unique<Buffer>(size_t(m) * panel_row_bytes(act, k), uint8_t(0xff));
    RowBlocks blocks(m, act);
    // In any order: rows are written by whoever computed them.
    for (int r = m - 1; r >= 0; r--)
      write_panel_row(act, blocks, r, x[size_t(r)].data(), k, panel->data());
    expect(panel->guarded(), "a panel is written outside");
    args.panels[int(act)] = panel->data();
  }
  const int stride = n + 5;
  Buffer out(size_t(m) * size_t(stride) * 4, uint8_t(0xff));  // all NaN
  args.segments = &segments;
  args.rows = m;
  args.out = out.floats();
  args.out_stride = stride;
  args.bias = extra.bias;
  args.residual = extra.residual;
  args.residual_stride = n;
  pool.each(linear_units(segments), 1,
            [&](int64_t begin, int64_t end, const Worker&) { linear(args, int(begin), int(end)); });
  expect(out.guarded(), "linear writes outside");
  Rows result;
  for (int r = 0; r < m; r++) {
    const float* row = out.floats() + r * stride;
    result.emplace_back(row, row + n);
    for (int i = n; i < stride; i++) {
      uint32_t bits;
      std::memcpy(&bits, row + i, 4);
      expect(bits == 0xffffffffu, "linear writes beyond a row");
    }
  }
  return result;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

Rows random_activations(int m, int k, Random& random, bool extreme) {
  Rows x(static_cast<size_t>(m), std::vector<float>(static_cast<size_t>(k)));
  for (auto& row : x) {
    float size = std::ldexp(1.0f, random.below(9) - 4);
    for (size_t i = 0; i < row.size(); i++) {
      row[i] = extreme ? (random.below(2) ? size : -size) : size * random.normal();
      if (!extreme && i / 32 % 5 == 3) row[i] = 0;  // whole blocks of zeros
    }
  }
  return x;
}

void check_values(const Matrix& w, const Rows& x, const Rows& got, int out0, Extra extra, int n) {
  for (size_t r = 0; r < x.size(); r++) {
    std::vector<double> a = seen(w.segment.act(), x[r]);
    for (int row = 0; row < w.rows; row++) {
      double want = 0, size = 0, plain = 0, wide = 0, rounded = 0;
      for (int i = 0; i < w.k; i++) {
        test::Value v = w.at(row, i);
        want += v.sum() * a[size_t(i)];
        plain += v.sum() * double(x[r][size_t(i)]);
        size += (std::fabs(v.product) + std::fabs(v.low)) * std::fabs(a[size_t(i)]);
        wide += v.sum() * v.sum();
        if (!w.steps.empty())
          rounded += w.steps[size_t(row * w.k + i)] / 2 * std::fabs(a[size_t(i)]);
      }
      int col = out0 + row;
      double b = extra.bias ? double(extra.bias[col]) : 0;
      double more = extra.residual ? double(extra.residual[r * size_t(n) + size_t(col)]) : 0;
      double added = b + more;
      size += std::fabs(b) + std::fabs(more);
      double y = double(got[r][size_t(col)]);
      // A float sum of K / 32 blocks or K / 2 values; the terms' magnitude bounds the error.
      double terms = w.segment.act() == Act::q8 ? w.k / 32.0 + 4 : w.k / 2.0 + 4;
      double allowed = size * terms * 0x1p-23 + rounded + 1e-30;
      expect(std::fabs(y - want - added) <= allowed, "%s row %d of %d x %d: %.9g, not %.9g",
             test::name_of(w.codec), row, w.rows, w.k, y, want + added);
      // And the rounding of activations itself stays small.
      double norm = 0;
      for (float v : x[r]) norm = std::max(norm, std::fabs(double(v)));
      double noise = 0.02 * norm * std::sqrt(wide) + allowed;
      expect(std::fabs(y - plain - added) <= noise, "%s: activations lose too much: %g for %g",
             test::name_of(w.codec), y, plain + added);
    }
  }
}

void check_decode(const Matrix& w) {
  std::vector<float> row(static_cast<size_t>(w.k));
  for (int r = 0; r < w.rows; r++) {
    decode_row(w.segment, r, row.data());
    for (int i = 0; i < w.k; i++) {
      test::Value v = w.at(r, i);
      // (Codes of 8 bits were parted at 128: scale · code is that much larger, at most.)
      double apart = w.kind.bits == 8 ? 128 * 0.02 : 0;
      double allowed = (std::fabs(v.product) + std::fabs(v.low) + apart) * 2e-7 + 1e-40;
      expect(std::fabs(double(row[size_t(i)]) - v.sum()) <= allowed,
             "decode_row of %s, row %d, k %d: %.9g, not %.9g", test::name_of(w.codec), r, i,
             double(row[size_t(i)]), v.sum());
    }
  }
}

Pool& pool_of(int workers) {
  static Pool one(1), two(2), three(3);
  return workers == 1 ? one : workers == 2 ? two : three;
}

// A matrix of codec and perhaps one more of another codec beside it.
void check_shape(Kind kind, CodecId second, int n, int k, bool extreme, Random& random) {
  Matrix w(kind, n, k, 0, random, extreme);
  const CodecId codec = kind.codec;
  check_decode(w);
  std::vector<const Matrix*> matrices{&w};
  std::unique_ptr<Matrix> other;
  int width = n;
  if (second != CodecId::count) {
    other = std::make_unique<Matrix>(second, kLanes + 2, k, n, random, extreme);
    matrices.push_back(other.get());
    width += kLanes + 2;
  }
  const int most = 17;
  Rows x = random_activations(most, k, random, extreme);
  std::vector<float> bias(static_cast<size_t>(width)), residual(size_t(width) * most);
  for (auto& v : bias) v = random.normal();
  for (auto& v : residual) v = random.normal();
  Extra extra;
  if (random.below(2)) extra.bias = bias.data();
  if (random.below(2)) extra.residual = residual.data();

  Rows alone;
  for (int r = 0; r < most; r++) {
    Extra mine = extra;
    if (mine.residual) mine.residual += r * width;
    alone.push_back(multiply(matrices, {x[size_t(r)]}, 1, width, pool_of(1), mine)[0]);
  }
  check_values(w, x, alone, 0, extra, width);
  if (other) check_values(*other, x, alone, n, extra, width);
  for (int m = 2; m <= most; m += test::quick && m > isa::kMaxRows ? 4 : 1) {
    Rows got = multiply(matrices, x, m, width, pool_of(m % 6 == 5 ? 2 + m % 2 : 1), extra);
    for (int r = 0; r < m; r++)
      expect(same_bits(got[size_t(r)], alone[size_t(r)]),
             "%s, %d x %d: row %d of %d differs from the row alone", test::name_of(codec), n, k, r,
             m);
  }
}

void check_codec(CodecId codec) {
  Random random(100 + uint64_t(codec));
  int unit = granule(codec);
  expect(unit % test::format_of(codec).block == 0 || unit == 1, "granule");
  const int widths[] = {unit, 3 * unit, unit == 1 ? 259 : unit == 32 ? 416 : 512, 7 * unit};
  const int heights[] = {1, kLanes - 1, 37, 2 * kLanes + 1};
  for (int i = 0; i < 4; i++) {
    if (test::quick && i == 3) break;
    check_shape(codec, CodecId::count, heights[i], widths[i], false, random);
  }
  check_shape(codec, CodecId::count, kLanes + 1, 2 * unit, true, random);
  // A neighbour of another kind, in one call: as when q, k, v have different encodings.
  CodecId second = codec == CodecId::q8_0 ? CodecId::f32 : CodecId::q8_0;
  check_shape(codec, second, kLanes + 3, unit == 1 ? 32 : unit, false, random);
}

// Groups of one block, of some (the last one of a row is cut), of a whole row; each type of
// scales and each thing beside them.
void check_groups(int bits) {
  Random random(200 + uint64_t(bits));
  const int groups[] = {32, 64, 96, 128, 4096};
  for (auto beside : {Beside::nothing, Beside::zeros, Beside::lows, Beside::float_zeros})
    for (auto type : {ScaleType::f16, ScaleType::bf16, ScaleType::f32}) {
      const int group = groups[random.below(5)];
      if (test::quick && type == ScaleType::f32) continue;
      Kind kind(bits, group, type, beside);
      check_shape(kind, CodecId::count, 1 + random.below(2 * kLanes + 3),
                  32 * (1 + random.below(9)), false, random);
      check_shape(kind, type == ScaleType::f16 ? CodecId::q4_0 : CodecId::count, kLanes + 1, 160,
                  true, random);
    }
}

// Floats of 8 bits, with every type of scales and the groups of above.
void check_floats(Number number) {
  Random random(300 + uint64_t(number));
  const int groups[] = {32, 64, 96, 128, 4096};
  for (auto type : {ScaleType::f16, ScaleType::bf16, ScaleType::f32})
    for (int group : groups) {
      Kind kind(number, group, type);
      check_shape(kind, CodecId::count, 1 + random.below(2 * kLanes + 3),
                  32 * (1 + random.below(9)), false, random);
      if (test::quick) continue;
      check_shape(kind, type == ScaleType::f16 ? CodecId::q4_0 : CodecId::bf16, kLanes + 1, 160,
                  true, random);
    }
}

// A table of 16 floats, as bitsandbytes has (any will do), in the groups of above.
void check_books() {
  Random random(400);
  const int groups[] = {32, 64, 128, 4096};
  for (auto type : {ScaleType::f32, ScaleType::bf16})
    for (int group : groups) {
      float table[16];
      for (auto& v : table) v = random.uniform(-1, 1);
      table[random.below(16)] = random.below(2) ? 1.0f : -1.0f;
      if (group == 32)
        for (auto& v : table) v = 0;  // all of them zero
      const Codebook book(table);
      Kind kind(book, group, type);
      check_shape(kind, CodecId::count, 1 + random.below(2 * kLanes + 3),
                  32 * (1 + random.below(9)), false, random);
      check_shape(kind, CodecId::q8_0, kLanes + 1, 160, true, random);
    }
}

void check_nvfp4() {
  Random random(401);
  for (bool divide : {false, true}) {
    Kind kind(divide ? 2688.0f : 3e-4f, divide);
    for (int i = 0; i < 3; i++)
      check_shape(kind, CodecId::count, 1 + random.below(2 * kLanes + 3),
                  32 * (1 + random.below(9)), false, random);
    check_shape(kind, CodecId::q4_0, kLanes + 1, 160, true, random);
  }
}

// A tall matrix and many workers: every group of tiles is taken exactly once.
void tall() {
  Random random(5);
  const int n = test::quick ? 300 : 1531, k = 64, m = 40;
  Matrix w(CodecId::q4_0, n, k, 0, random, false);
  Rows x = random_activations(m, k, random, false);
  Rows one = multiply({&w}, x, m, n, pool_of(1), {});
  for (int workers : {2, 3}) {
    Rows more = multiply({&w}, x, m, n, pool_of(workers), {});
    for (int r = 0; r < m; r++)
      expect(same_bits(one[size_t(r)], more[size_t(r)]), "row %d with %d workers", r, workers);
  }
}

void nothing() {
  Random random(6);
  Matrix w(CodecId::q8_0, 3, 32, 0, random, false);
  Rows none = multiply({&w}, {}, 0, 3, pool_of(2), {});
  expect(none.empty(), "no rows");
}

}  // namespace

int main(int argc, char** argv) {
  test::arguments(argc, argv);
  for (int i = 0; i < int(CodecId::codes2); i++)
    test::run(test::name_of(CodecId(i)), [&] { check_codec(CodecId(i)); });
  for (int bits : {2, 3, 4, 5, 6, 8})
    test::run(("groups of codes of " + std::to_string(bits) + " bits").c_str(),
              [&] { check_groups(bits); });
  test::run("floats of 8 bits, e4m3", [] { check_floats(Number::e4m3); });
  test::run("floats of 8 bits, e5m2", [] { check_floats(Number::e5m2); });
  test::run("tables of 16 floats", check_books);
  test::run("NVFP4", check_nvfp4);
  test::run("a tall matrix", tall);
  test::run("no rows at all", nothing);
  return test::result();
}
