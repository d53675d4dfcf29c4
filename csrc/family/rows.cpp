#include "rows.h"

#include <cmath>
#include <cstring>

namespace gm::inline GM_ISA {
namespace {

using isa::F;
using isa::kLanes;

// fn(i, n): whole vectors (n = kLanes), then the tail.
template <class Fn>
[[gnu::always_inline]] inline void vectors(int n, Fn fn) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) fn(i, std::false_type{}, kLanes);
  if (i < n) fn(i, std::true_type{}, n - i);
}

template <class Tail>
[[gnu::always_inline]] inline F get(const float* p, Tail, int n) {
  if constexpr (Tail::value)
    return isa::load_n(p, n);
  else
    return isa::load(p);
}

template <class Tail>
[[gnu::always_inline]] inline void put(float* p, F x, Tail, int n) {
  if constexpr (Tail::value)
    isa::store_n(p, x, n);
  else
    isa::store(p, x);
}

// out[i] = fn(x[i])
template <class Fn>
[[gnu::always_inline]] inline void map(const float* x, int n, float* out, Fn fn) {
  vectors(n, [&](int i, auto tail, int m) { put(out + i, fn(get(x + i, tail, m)), tail, m); });
}

template <class Fn>
[[gnu::always_inline]] inline void map2(const float* x, const float* y, int n, float* out, Fn fn) {
  vectors(n, [&](int i, auto tail, int m) {
    put(out + i, fn(get(x + i, tail, m), get(y + i, tail, m)), tail, m);
  });
}

F gelu_erf(F x) {
  alignas(64) float v[kLanes];
  isa::store(v, x);
  for (float& a : v) a = 0.5f * a * (1.0f + std::erf(a * 0.70710678f));
  return isa::load(v);
}

F softplus(F x) {
  alignas(64) float v[kLanes];
  isa::store(v, x);
  for (float& a : v) a = a > 20.0f ? a : std::log1p(std::exp(a));
  return isa::load(v);
}

// Calls fn with the activation as a function of vectors.
template <class Fn>
void with_activation(Activation act, Fn fn) {
  switch (act) {
    case Activation::silu:
      return fn([](F x) { return isa::mul(x, isa::sigmoid(x)); });
    case Activation::gelu_tanh:  // ½x(1 + tanh u) = x·sigmoid(2u)
      return fn([](F x) {
        F x2 = isa::mul(x, x);
        F u = isa::mul(x, isa::fma(x2, isa::set1(0.07135481627f), isa::set1(1.595769122f)));
        return isa::mul(x, isa::sigmoid(u));
      });
    case Activation::gelu:
      return fn([](F x) { return gelu_erf(x); });
    case Activation::relu:
      return fn([](F x) { return isa::max(x, isa::zero()); });
    case Activation::relu2:
      return fn([](F x) {
        F r = isa::max(x, isa::zero());
        return isa::mul(r, r);
      });
    case Activation::sigmoid:
      return fn([](F x) { return isa::sigmoid(x); });
    case Activation::softplus:
      return fn([](F x) { return softplus(x); });
  }
}

}  // namespace

void rms_norm(const float* x, const float* weight, float eps, int heads, int n, float* out) {
  for (int h = 0; h < heads; h++, x += n, out += n) {
    F squares = isa::zero();
    vectors(n, [&](int i, auto tail, int m) {
      F v = get(x + i, tail, m);
      squares = isa::fma(v, v, squares);
    });
    F inverse = isa::set1(1.0f / std::sqrt(isa::sum(squares) / float(n) + eps));
    if (weight)
      map2(x, weight, n, out, [&](F v, F w) { return isa::mul(isa::mul(v, inverse), w); });
    else
      map(x, n, out, [&](F v) { return isa::mul(v, inverse); });
  }
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, int n,
                float* out) {
  F total = isa::zero();
  vectors(n, [&](int i, auto tail, int m) { total = isa::add(total, get(x + i, tail, m)); });
  float mean = isa::sum(total) / float(n);
  // The tail's padding must not count: it would add mean² per lane.
  F squares = isa::zero();
  float rest = 0.0f;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    F v = isa::sub(isa::load(x + i), isa::set1(mean));
    squares = isa::fma(v, v, squares);
  }
  for (; i < n; i++) rest += (x[i] - mean) * (x[i] - mean);
  F inverse = isa::set1(1.0f / std::sqrt((isa::sum(squares) + rest) / float(n) + eps));
  map2(x, weight, n, out,
       [&](F v, F w) { return isa::mul(isa::mul(isa::sub(v, isa::set1(mean)), inverse), w); });
  if (bias) map2(out, bias, n, out, [](F v, F b) { return isa::add(v, b); });
}

void glu(Activation act, const float* gate, const float* up, int n, float* out) {
  with_activation(
      act, [&](auto fn) { map2(gate, up, n, out, [&](F g, F u) { return isa::mul(fn(g), u); }); });
}

void activate(Activation act, const float* x, int n, float* out) {
  with_activation(act, [&](auto fn) { map(x, n, out, fn); });
}

void elementwise(Elementwise op, const float* x, const float* y, int n, float* out) {
  if (op == Elementwise::mul_by_one)
    scale(x, *y, n, out);
  else if (op == Elementwise::add)
    map2(x, y, n, out, [](F a, F b) { return isa::add(a, b); });
  else
    map2(x, y, n, out, [](F a, F b) { return isa::mul(a, b); });
}

void scale(const float* x, float factor, int n, float* out) {
  map(x, n, out, [&](F v) { return isa::mul(v, isa::set1(factor)); });
}

void softcap(const float* x, float cap, int n, float* out) {
  F c = isa::set1(cap), inverse = isa::set1(1.0f / cap);
  map(x, n, out, [&](F v) { return isa::mul(c, isa::tanh(isa::mul(v, inverse))); });
}

void rope(const float* x, const float* cosine, const float* sine, int pairs, int style, int heads,
          int head_dim, float* out) {
  for (int h = 0; h < heads; h++, x += head_dim, out += head_dim) {
    if (style == 0) {
      vectors(pairs, [&](int i, auto tail, int m) {
        F a = get(x + i, tail, m), b = get(x + pairs + i, tail, m);
        F c = get(cosine + i, tail, m), s = get(sine + i, tail, m);
        put(out + i, isa::sub(isa::mul(a, c), isa::mul(b, s)), tail, m);
        put(out + pairs + i, isa::add(isa::mul(b, c), isa::mul(a, s)), tail, m);
      });
    } else {
      for (int i = 0; i < pairs; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        out[2 * i] = a * cosine[i] - b * sine[i];
        out[2 * i + 1] = b * cosine[i] + a * sine[i];
      }
    }
    int rotated = 2 * pairs;
    if (out != x && rotated < head_dim)
      std::memcpy(out + rotated, x + rotated, sizeof(float) * size_t(head_dim - rotated));
  }
}

}  // namespace gm::inline GM_ISA
