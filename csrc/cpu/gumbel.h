// The noise of the tokens of one draw: a Gumbel variable from a hash of (key, token id).
//
// The largest (logit / temperature + noise) is a sample of the softmax. The arithmetic is IEEE's basic
// operations in a fixed order, so every machine and the reference (quire.ops.gumbel) have the same bits.
#pragma once

#include <stdint.h>

#include <bit>

namespace quire {

struct DrawKey {
  uint32_t first = 0, second = 0;
};

namespace {

// For one id or for a vector of them. With a fixed `second`, any id and result have one `first`.
// The multipliers and shifts are those of MurmurHash3's 32-bit finalizer.
template <class Bits>
inline Bits hash_token(Bits h, uint32_t first, uint32_t second) {
  h = h ^ first;
  h = (h ^ (h >> 16)) * 0x85ebca6bu + second;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

// The natural logarithm of a normal x > 0, by the series of artanh. |s| < 0.172, so that the first
// omitted term is below 2^-54 of the result.
inline double log_of(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffff) | 0x3ff0000000000000);  // in [1, 2)
  if (m > 0x1.6a09e667f3bcdp0) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0), s2 = s * s, s4 = s2 * s2;
  double p = 2.0 / 17 + 2.0 / 19 * s2;  // in pairs: half the chain of operations
  p = p * s4 + (2.0 / 13 + 2.0 / 15 * s2);
  p = p * s4 + (2.0 / 9 + 2.0 / 11 * s2);
  p = p * s4 + (2.0 / 5 + 2.0 / 7 * s2);
  p = p * s4 + (2.0 + 2.0 / 3 * s2);
  return static_cast<double>(exponent) * 0x1.62e42fefa39efp-1 + s * p;
}

// -log(-log(1 - u)) with an odd multiple u of 2^-53. Its upper 32 bits are the hash that the bounds of
// sample.h use.
inline double gumbel(uint32_t id, const DrawKey& key) {
  const uint64_t high = hash_token(id, key.first, key.second);
  const uint64_t low = hash_token(id, key.second, key.first);
  const uint64_t odd = high << 21 | (low >> 12) << 1 | 1;
  return -log_of(-log_of(1.0 - static_cast<double>(odd) * 0x1p-53));
}

}  // namespace
}  // namespace quire
