// Functions made of the primitives: the same source gives every level its exp and tanh.
#pragma once

namespace gm::inline GM_ISA::isa {

// e^x, error below 1.1 ulp for x in [-87, 88]; 0 below -104, e^88.7 at most above. exp(0) is 1
// exactly, which online softmax relies on: a maximum that stays must not change a sum's bits.
// Range reduction by ln 2 in two parts, then 1 + r + r²·q(r), q of degree 4 fitted for the least
// relative error on |r| < 0.3473 (4e-9, against 6e-8 of the rounding).
inline F exp(F x) {
  // The constant comes first: x86 returns the second operand of a pair with a NaN, so NaN stays.
  x = min(set1(88.72f), max(set1(-104.0f), x));
  F n = round(mul(x, set1(1.44269504f)));
  F r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  F p = set1(1.381432e-3f);
  p = fma(p, r, set1(8.368851e-3f));
  p = fma(p, r, set1(4.16684e-2f));
  p = fma(p, r, set1(1.666652e-1f));
  p = fma(p, r, set1(4.9999994e-1f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return ldexp(p, n);
}

// 1 / (1 + e^-x)
inline F sigmoid(F x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), x)))); }

// 2·sigmoid(2x) − 1 loses digits near zero, where an odd series serves.
inline F tanh(F x) {
  // tanh(10) rounds to 1; beyond it the series, though given no weight, would overflow to NaN.
  x = min(set1(10.0f), max(set1(-10.0f), x));
  F s = sub(mul(set1(2.0f), sigmoid(mul(set1(2.0f), x))), set1(1.0f));
  F x2 = mul(x, x);
  F t = fma(x2, set1(-17.0f / 315.0f), set1(2.0f / 15.0f));
  t = fma(x2, t, set1(-1.0f / 3.0f));
  t = fma(mul(x2, x), t, x);
  // Blend without a mask primitive: the weight is 1 for |x| < 0.15, else 0.
  F a = abs(x);
  F w = min(max(mul(sub(set1(0.15f), a), set1(1e30f)), zero()), set1(1.0f));
  return fma(w, sub(t, s), s);
}

}  // namespace gm::inline GM_ISA::isa
