// The door for weights: checks types, shapes and sizes of what is packed.
#include <nanobind/stl/optional.h>

#include <optional>

#include "bind.h"
#include "codec/pack.h"

namespace gm::inline GM_ISA {
namespace {

std::vector<std::string> codec_names() {
  return {
#define X(type, codec) #codec,
      GM_FILE_CODECS(X)
#undef X
  };
}

// Rows of codes and what belongs to their groups: sizes as the matrix has made room for.
void put_codes(Matrix& self, int start, Bytes2 codes, Floats2 scales, std::optional<Bytes2> zeros,
               std::optional<Floats2> others, Pool& pool) {
  const Segment& s = self.coded();
  const Beside beside = s.grouping.beside;
  const size_t rows = codes.shape(0), groups = size_t(s.grouping.groups(s.k));
  auto fits = [&](auto& a) { return a.shape(0) == rows && a.shape(1) == groups; };
  if (rows > size_t(s.rows) || codes.shape(1) != size_t(s.k) || !fits(scales))
    refuse("codes or scales do not fit the matrix");
  if (zeros.has_value() != (beside == Beside::zeros) ||
      others.has_value() != (beside > Beside::zeros) || (zeros && !fits(*zeros)) ||
      (others && !fits(*others)))
    refuse("zeros or lows do not fit the matrix");
  CodeRows source{start,
                  int(rows),
                  codes.data(),
                  scales.data(),
                  zeros ? zeros->data() : nullptr,
                  others ? others->data() : nullptr};
  nb::gil_scoped_release nogil;
  self.put_codes(source, pool);
}

}  // namespace
}  // namespace gm::inline GM_ISA

using namespace gm::GM_ISA;

void bind_matrix(nb::module_& m) {
  m.def("codecs", &codec_names);
  m.def("granule", [](const std::string& c) { return granule(codec_named(c)); });
  m.def("source_row_bytes",
        [](const std::string& c, int k) { return source_row_bytes(codec_named(c), k); });

  nb::class_<Vector>(m, "Vector")
      .def(
          "__init__",
          [](Vector* self, Floats1 v) {
            new (self) Vector{std::vector<float>(v.data(), v.data() + v.shape(0))};
          },
          "values"_a);

  nb::class_<Matrix>(m, "Matrix")
      .def(nb::init<int>(), "k"_a)
      .def(
          "append",
          [](Matrix& self, const std::string& codec, int rows, Bytes source, Pool& pool) {
            CodecId id = codec_named(codec);
            nb::gil_scoped_release nogil;
            self.append(id, rows, source.data(), source.shape(0), pool);
          },
          "codec"_a, "rows"_a, "source"_a, "pool"_a)
      .def(
          "keep",
          [](Matrix& self, const std::string& codec, int rows, Bytes source) {
            auto owner = std::make_shared<Bytes>(source);
            self.keep(codec_named(codec), rows, source.data(), source.shape(0), std::move(owner));
          },
          "codec"_a, "rows"_a, "source"_a)
      .def(
          "append_codes",
          [](Matrix& self, int rows, int bits, int group, int type, int beside, int number,
             float factor, bool divide, std::optional<Floats1> table) {
            if (type < 0 || type > 3 || beside < 0 || beside > 3) refuse("no such type of scales");
            if (number < 0 || number > 4) refuse("no such numbers");
            if (table && table->shape(0) != 16) refuse("a table has 16 values");
            Grouping kind;
            kind.type = ScaleType(type);
            kind.beside = Beside(beside);
            kind.factor = factor;
            kind.divide = divide;
            nb::gil_scoped_release nogil;
            self.append_codes(rows, bits, group, Number(number), kind,
                              table ? table->data() : nullptr);
          },
          "rows"_a, "bits"_a, "group"_a, "type"_a, "beside"_a, "number"_a = 0, "factor"_a = 1.0f,
          "divide"_a = false, "table"_a.none() = nb::none())
      .def("put_codes", &put_codes, "start"_a, "codes"_a, "scales"_a, "zeros"_a.none(),
           "others"_a.none(), "pool"_a)
      .def(
          "set_order",
          [](Matrix& self, Ints1 order) {
            self.set_order(std::vector<int32_t>(order.data(), order.data() + order.shape(0)));
          },
          "order"_a)
      // The bytes of the order, or None: equal for matrices that can share a panel.
      .def_prop_ro("order",
                   [](const Matrix& self) -> nb::object {
                     if (!self.order()) return nb::none();
                     return nb::bytes(self.order()->data(), self.order()->size() * 4);
                   })
      .def_prop_ro("n", &Matrix::n)
      .def_prop_ro("k", &Matrix::k)
      .def_prop_ro("nbytes", &Matrix::bytes)
      .def("needs", [](const Matrix& self, int act) { return self.needs(Act(act)); })
      .def("decode", [](const Matrix& self, int row) {
        if (row < 0 || row >= self.n()) throw std::out_of_range("no such row");
        float* data = new float[size_t(self.k())];
        nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
        self.decode(row, data);
        return nb::ndarray<nb::numpy, float>(data, {size_t(self.k())}, owner);
      });
}
