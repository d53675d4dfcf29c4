// The row kernels against double precision: odd widths, in place, nothing written beyond.
#include "../family/rows.h"

#include <cmath>
#include <functional>
#include <vector>

#include "check.h"

namespace {

using namespace gm;
using test::expect;
using test::Random;
using Doubles = std::vector<double>;

constexpr int kWidths[] = {1, 3, 7, 8, 15, 16, 17, 64, 100, 255};

std::vector<float> normals(int n, float size, Random& random) {
  std::vector<float> x(static_cast<size_t>(n));
  for (auto& v : x) v = size * random.normal();
  return x;
}

// Runs `kernel(x, out)` apart and in place; compares with `want`.
void check(const char* name, const std::vector<float>& x, const Doubles& want, double tolerance,
           const std::function<void(const float*, float*)>& kernel, double absolute = 1e-37) {
  const size_t n = want.size();
  std::vector<float> out(n + 3, -77.0f);
  kernel(x.data(), out.data());
  double largest = 0;
  for (double v : want) largest = std::max(largest, std::fabs(v));
  for (size_t i = 0; i < n; i++) {
    double allowed = tolerance * std::fabs(want[i]) + 1e-7 * largest + absolute;
    expect(std::fabs(double(out[i]) - want[i]) <= allowed, "%s, n %d: [%d] = %.9g, not %.9g", name,
           int(n), int(i), double(out[i]), want[i]);
  }
  for (size_t i = n; i < n + 3; i++) expect(out[i] == -77.0f, "%s writes beyond its row", name);
  std::vector<float> same = x;
  kernel(same.data(), same.data());
  for (size_t i = 0; i < n; i++)
    expect(std::memcmp(&same[i], &out[i], 4) == 0, "%s differs in place", name);
}

void rms_norms() {
  Random random(1);
  for (int n : kWidths)
    for (int heads : {1, 3})
      for (bool weighted : {true, false}) {
        auto x = normals(n * heads, 30.0f, random), w = normals(n, 1.0f, random);
        Doubles want;
        for (int h = 0; h < heads; h++) {
          double squares = 0;
          for (int i = 0; i < n; i++) squares += std::pow(double(x[size_t(h * n + i)]), 2);
          double inverse = 1 / std::sqrt(squares / n + double(1e-5f));
          for (int i = 0; i < n; i++)
            want.push_back(double(x[size_t(h * n + i)]) * inverse *
                           (weighted ? double(w[size_t(i)]) : 1));
        }
        check("rms_norm", x, want, 2e-6, [&](const float* in, float* out) {
          rms_norm(in, weighted ? w.data() : nullptr, 1e-5f, heads, n, out);
        });
      }
}

void layer_norms() {
  Random random(2);
  for (int n : kWidths)
    for (bool biased : {true, false}) {
      auto x = normals(n, 3.0f, random), w = normals(n, 1.0f, random), b = normals(n, 1.0f, random);
      for (auto& v : x) v += 10;  // a mean that must be taken off
      double mean = 0, variance = 0;
      for (float v : x) mean += double(v) / n;
      for (float v : x) variance += std::pow(double(v) - mean, 2) / n;
      Doubles want;
      for (size_t i = 0; i < size_t(n); i++)
        want.push_back((double(x[i]) - mean) / std::sqrt(variance + double(1e-5f)) * double(w[i]) +
                       (biased ? double(b[i]) : 0));
      // n = 1: x − mean is the rounding of the mean; only the bias is left.
      if (n == 1) continue;
      check("layer_norm", x, want, 1e-5, [&](const float* in, float* out) {
        layer_norm(in, w.data(), biased ? b.data() : nullptr, 1e-5f, n, out);
      });
    }
}

double activation(Activation act, double x) {
  switch (act) {
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::gelu_tanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / 3.14159265358979) * (x + 0.044715 * x * x * x)));
    case Activation::gelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::relu:
      return x > 0 ? x : 0;
    case Activation::relu2:
      return x > 0 ? x * x : 0;
    case Activation::sigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::softplus:
      return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
  }
  return 0;
}

void activations() {
  Random random(3);
  for (int kind = 0; kind <= int(Activation::softplus); kind++)
    for (int n : kWidths) {
      auto act = Activation(kind);
      auto x = normals(n, 2.0f, random), y = normals(n, 1.0f, random);
      Doubles alone, gated;
      for (size_t i = 0; i < size_t(n); i++) {
        alone.push_back(activation(act, double(x[i])));
        gated.push_back(alone.back() * double(y[i]));
      }
      // Far below zero gelu is a small difference of near numbers: the absolute term serves.
      check(
          "activate", x, alone, 1e-5,
          [&](const float* in, float* out) { activate(act, in, n, out); }, 5e-7);
      check(
          "glu", x, gated, 1e-5,
          [&](const float* in, float* out) { glu(act, in, y.data(), n, out); }, 2e-6);
    }
  // Large inputs: no NaN, the right ends.
  for (int kind = 0; kind <= int(Activation::softplus); kind++) {
    std::vector<float> x{-1e4f, -500.0f, -50.0f, 50.0f, 500.0f, 1e4f, 0.0f}, out(x.size());
    activate(Activation(kind), x.data(), int(x.size()), out.data());
    for (size_t i = 0; i < x.size(); i++) {
      double want = activation(Activation(kind), double(x[i]));
      expect(std::fabs(double(out[i]) - want) <= 1e-6 * std::fabs(want) + 1e-6,
             "activation %d of %g is %g", kind, double(x[i]), double(out[i]));
    }
  }
}

void elementwises() {
  Random random(4);
  for (int n : kWidths) {
    auto x = normals(n, 5.0f, random), y = normals(n, 5.0f, random);
    Doubles sum, product, scaled, capped;
    for (size_t i = 0; i < size_t(n); i++) {
      sum.push_back(double(x[i] + y[i]));
      product.push_back(double(x[i] * y[i]));
      scaled.push_back(double(x[i] * 0.3f));
      capped.push_back(3 * std::tanh(double(x[i]) / 3));
    }
    check("add", x, sum, 0, [&](const float* in, float* out) {
      elementwise(Elementwise::add, in, y.data(), n, out);
    });
    check("mul", x, product, 0, [&](const float* in, float* out) {
      elementwise(Elementwise::mul, in, y.data(), n, out);
    });
    check("scale", x, scaled, 0, [&](const float* in, float* out) { scale(in, 0.3f, n, out); });
    check("softcap", x, capped, 3e-6,
          [&](const float* in, float* out) { softcap(in, 3.0f, n, out); });
  }
}

void ropes() {
  Random random(5);
  for (int style : {0, 1})
    for (int pairs : {1, 3, 8, 20, 32})
      for (int rest : {0, 2, 5})  // features beyond the rotated ones pass unchanged
        for (int heads : {1, 3}) {
          int dim = 2 * pairs + rest;
          auto x = normals(dim * heads, 1.0f, random);
          std::vector<float> c, s;
          for (int i = 0; i < pairs; i++) {
            float angle = random.uniform(-3, 3);
            c.push_back(1.1f * std::cos(angle));
            s.push_back(1.1f * std::sin(angle));
          }
          Doubles want(x.begin(), x.end());
          for (int h = 0; h < heads; h++)
            for (int i = 0; i < pairs; i++) {
              size_t a = size_t(h * dim + (style ? 2 * i : i));
              size_t b = size_t(h * dim + (style ? 2 * i + 1 : i + pairs));
              double cosine = double(c[size_t(i)]), sine = double(s[size_t(i)]);
              want[a] = double(x[a]) * cosine - double(x[b]) * sine;
              want[b] = double(x[b]) * cosine + double(x[a]) * sine;
            }
          check("rope", x, want, 1e-6, [&](const float* in, float* out) {
            rope(in, c.data(), s.data(), pairs, style, heads, dim, out);
          });
        }
}

}  // namespace

int main(int argc, char** argv) {
  test::arguments(argc, argv);
  test::run("rms_norm", rms_norms);
  test::run("layer_norm", layer_norms);
  test::run("activate glu", activations);
  test::run("elementwise scale softcap", elementwises);
  test::run("rope", ropes);
  return test::result();
}
