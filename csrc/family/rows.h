// Row kernels: everything that works on one row of activations at a time.
#pragma once
#include <cstddef>
#include <cstdint>

#include "../isa/isa.h"

namespace gm::inline GM_ISA {

enum class Activation : int { silu, gelu_tanh, gelu, relu, relu2, sigmoid, softplus };
enum class Elementwise : int { add = 0, mul = 1, mul_by_one = 2 };  // one: y is one number

// x / sqrt(mean(x²) + eps) · weight over each of `heads` groups of n; weight null is ones.
void rms_norm(const float* x, const float* weight, float eps, int heads, int n, float* out);
void layer_norm(const float* x, const float* weight, const float* bias, float eps, int n,
                float* out);
// act(gate) · up
void glu(Activation act, const float* gate, const float* up, int n, float* out);
void activate(Activation act, const float* x, int n, float* out);
void elementwise(Elementwise op, const float* x, const float* y, int n, float* out);
void scale(const float* x, float factor, int n, float* out);
void softcap(const float* x, float cap, int n, float* out);
// Rotates each head of head_dim columns. cosine and sine have `pairs` values; style 0 pairs
// feature i with i + pairs, style 1 feature 2i with 2i + 1. x and out may be the same.
void rope(const float* x, const float* cosine, const float* sine, int pairs, int style, int heads,
          int head_dim, float* out);

}  // namespace gm::inline GM_ISA
