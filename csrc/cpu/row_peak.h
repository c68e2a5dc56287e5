// The largest value of a row, and positions of values, by comparisons only.
#pragma once

#include "simd.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr float kLowest = -__builtin_inff();

// The largest of n floats; NaN if there is one.
inline float peak_of(const float* x, int64_t n) {
  Vec top0 = broadcast(kLowest), top1 = top0;
  Mask sick = no_lanes();
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const Vec a = load(x + i), b = load(x + i + kLanes);
    top0 = max(a, top0);  // unchanged if a is NaN
    top1 = max(b, top1);
    sick = either(sick, either(is_nan(a), is_nan(b)));
  }
  float top = largest(max(top0, top1));
  bool nan = lanes_of(sick) != 0;
  for (; i < n; ++i) {
    nan |= x[i] != x[i];
    if (x[i] > top) top = x[i];
  }
  return nan ? __builtin_nanf("") : top;
}

// The first of n floats that is not less than `bound`, or n.
inline int64_t first_from(const float* x, int64_t n, float bound) {
  const Vec b = broadcast(bound);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const unsigned lanes = lanes_of(not_less(load(x + i), b));
    if (lanes != 0) return i + __builtin_ctz(lanes);
  }
  while (i < n && !(x[i] >= bound)) ++i;
  return i;
}

}  // namespace
}  // namespace quire::QUIRE_ISA
