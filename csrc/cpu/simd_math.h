// Functions of vectors: exp, and the functions that use it.
//
// A lane's result depends only on that lane, so the end of a row is rounded like its middle. The largest
// relative errors against exact arithmetic, over all floats, in units of 2^-24 (checked by tests): exp 2,
// tanh 5, sigmoid 4, normal_tail 10; of bf16 more (times_sigmoid). Subnormal results have an absolute
// error of 2^-149. NaN stays NaN.
#pragma once

#include "simd.h"

namespace quire::QUIRE_ISA {
namespace {

// exp(x) = 2^n · (1 + p).
struct ExpParts {
  Vec n, p;
};

// The parts of exp(high + low), |low| < 0.05, for arguments of more than float's precision.
//
// With n = round(x / ln 2), exp(x) = 2^n · exp(r), and exp(r) = 1 + r + r² q(r) by a minimax
// polynomial over |r| < 0.39. ln 2 is taken in two parts, of which n times the first is exact.
inline ExpParts exp_parts(Vec high, Vec low) {
  // Beyond these bounds the result is 0 or infinity. The order of the operands keeps NaN.
  const Vec x = max(broadcast(-104.0f), min(broadcast(89.0f), high));
  const Vec whole = broadcast(0x1.8p23f);  // added and subtracted: to the nearest integer
  const Vec n = sub(fma(add(x, low), broadcast(0x1.715476p0f), whole), whole);
  const Vec near = sub(x, mul(n, broadcast(0x1.62e4p-1f)));
  const Vec r = add(sub(near, mul(n, broadcast(0x1.7f7d1cp-20f))), low);
  Vec q = broadcast(1.37993229e-3f);
  q = fma(q, r, broadcast(8.37611333e-3f));
  q = fma(q, r, broadcast(4.16691793e-2f));
  q = fma(q, r, broadcast(1.66664534e-1f));
  q = fma(q, r, broadcast(4.99999884e-1f));
  return {n, fma(mul(r, r), q, r)};
}

inline Vec exp_of_sum(Vec high, Vec low) {
  const ExpParts e = exp_parts(high, low);
  return scale2(add(broadcast(1.0f), e.p), e.n);
}

// 2^x for x <= 127; results below 2^-126 are 0, so -inf gives 0; NaN stays NaN. 2^0 is exactly 1.
// x = n + f with n whole and f in [-0.5, 0.5]; 2^f by a minimax polynomial (error 2e-9, so that
// what remains is the rounding of its evaluation).
inline Vec exp2(Vec x) {
  const Vec low = max(broadcast(-127.0f), x);
  const Vec magic = broadcast(12583039.0f);  // 1.5 * 2^23 + 127: its last bits become n + 127
  const Vec shifted = add(low, magic);
  const Vec f = sub(low, sub(shifted, magic));
  Vec p = broadcast(0x1.41d334p-13f);
  p = fma(p, f, broadcast(0x1.5f456ap-10f));
  p = fma(p, f, broadcast(0x1.3b2dbcp-7f));
  p = fma(p, f, broadcast(0x1.c6aed4p-5f));
  p = fma(p, f, broadcast(0x1.ebfbdap-3f));
  p = fma(p, f, broadcast(0x1.62e430p-1f));
  p = fma(p, f, broadcast(1.0f));
  return mul(p, exponent(shifted));
}

inline Vec exp(Vec x) { return exp_of_sum(x, zero()); }

// exp(x) - 1 = 2^n p + (2^n - 1), which avoids cancellation. Beyond 20, and below -20, it stays the same.
inline Vec expm1(Vec x) {
  const ExpParts e = exp_parts(max(broadcast(-20.0f), min(broadcast(20.0f), x)), zero());
  const Vec power = scale2(broadcast(1.0f), e.n);
  return fma(power, e.p, sub(power, broadcast(1.0f)));
}

// tanh(x) = t / (t + 2) with t = exp(2x) - 1. For x >= 10 it is 1.
inline Vec tanh(Vec x) {
  const Vec t = expm1(add(x, x));
  return div(t, add(t, broadcast(2.0f)));
}

// x / (1 + exp(-t)): x times the logistic function of t. T is the type to which the result is rounded.
template <class T = float>
inline Vec times_sigmoid(Vec x, Vec t) {
  return div(x, add(broadcast(1.0f), exp(sub(zero(), t))));
}

#if defined(__AVX512DQ__)
// With half the instructions: the error is 2^-16.5 of the result, and bf16 rounds to 2^-9 of it.
// exp(-t) = 2^z, and z = floor(z) + f. The product z is off by 2^-24 of itself, its factor by 2^-26: with
// |z| < 128, beyond which the result is x or 0, that is 2^-17.2 of the power. 2^f is a minimax polynomial
// (2^-18.4). Infinite z has f = 0.
template <>
inline Vec times_sigmoid<bf16>(Vec x, Vec t) {
  const Vec z = mul(t, broadcast(-0x1.715476p0f));
  const Vec f = above_floor(z);
  Vec p = broadcast(0x1.b7f73p-7f);
  p = fma(p, f, broadcast(0x1.abf868p-5f));
  p = fma(p, f, broadcast(0x1.ee2450p-3f));
  p = fma(p, f, broadcast(0x1.62d6c6p-1f));
  p = fma(p, f, broadcast(1.0f));
  return div(x, add(broadcast(1.0f), scale2_floor(p, z)));
}
#endif

// 1 - Φ(a) of the normal distribution, for a >= 0. For a >= 15 it is 0.
//
// It is exp(-a²/2) · h(a) with h smooth; (1 + a) · h(a) is a minimax polynomial in
// (a - 4) / (a + 4). The square is taken in two parts, for its rounding would be an error of
// a²/2 units in the result.
inline Vec normal_tail(Vec a) {
  a = min(broadcast(15.0f), a);
  const Vec high = upper_half(a);  // 12 bits: its square is exact
  const Vec half = broadcast(-0.5f);
  const Vec tail = exp_of_sum(mul(mul(high, high), half),
                              mul(mul(sub(a, high), add(a, high)), half));
  const Vec a4 = add(a, broadcast(4.0f)), a1 = add(a, broadcast(1.0f));
  const Vec inverse = div(broadcast(1.0f), mul(a4, a1));
  const Vec u = mul(mul(sub(a, broadcast(4.0f)), a1), inverse);
  Vec p = broadcast(-7.19824471e-5f);
  p = fma(p, u, broadcast(-6.15432406e-5f));
  p = fma(p, u, broadcast(6.92214459e-4f));
  p = fma(p, u, broadcast(-3.0344066e-4f));
  p = fma(p, u, broadcast(-5.00394662e-3f));
  p = fma(p, u, broadcast(1.79402276e-2f));
  p = fma(p, u, broadcast(-3.21973473e-2f));
  p = fma(p, u, broadcast(2.85999688e-2f));
  p = fma(p, u, broadcast(1.39996004e-2f));
  p = fma(p, u, broadcast(-9.67034664e-2f));
  p = fma(p, u, broadcast(4.72053207e-1f));
  return mul(tail, mul(p, mul(a4, inverse)));
}

}  // namespace
}  // namespace quire::QUIRE_ISA
