// The passes of sample.h.
#include "sample.h"

#include <cstddef>

#include "row_peak.h"
#include "sample_parts.h"

namespace quire::QUIRE_ISA {

namespace {

// Eight doubles in the compiler's own vectors, which it cuts to the ISA's width.
constexpr int64_t kDoubles = 8;
typedef float F32x8 __attribute__((vector_size(4 * kDoubles)));
typedef double F64x8 __attribute__((vector_size(8 * kDoubles)));
typedef int64_t I64x8 __attribute__((vector_size(8 * kDoubles)));

// out[i] = exp(x[i]) for x <= 0, and 0 below -708.
//
// With n = round(x / ln 2), exp(x) = 2^n · exp(r), and exp(r) = 1 + r + r² q(r), where q is the
// Chebyshev interpolation over |r| <= ln 2 / 2 (error 2e-17). ln 2 is taken in two parts, of which
// n times the first is exact. Every ISA has the same bits: nothing is fused.
inline void exp(const F64x8& x, F64x8& out) {
  const F64x8 whole = x * 0x1.71547652b82fep0 + 0x1.8p52;  // its last bits are n
  const F64x8 n = whole - 0x1.8p52;
  const F64x8 r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
  const F64x8 r2 = r * r;  // the polynomial in pairs: half the chain of operations
  F64x8 q = r * 0x1.af389ecfcb5d9p-26 + 0x1.28917c89a99ffp-22;
  q = q * r2 + (r * 0x1.71de0db2f6aedp-19 + 0x1.a019b9149a3d4p-16);
  q = q * r2 + (r * 0x1.a01a01a7c2efep-13 + 0x1.6c16c17889ef1p-10);
  q = q * r2 + (r * 0x1.11111111109b5p-7 + 0x1.5555555553d68p-5);
  q = q * r2 + (r * 0x1.5555555555556p-3 + 0x1.0000000000001p-1);
  const F64x8 power = reinterpret_cast<F64x8>((reinterpret_cast<I64x8>(whole) + 1023) << 52);
  const F64x8 y = (r2 * q + r + 1.0) * power;
  out = reinterpret_cast<F64x8>(reinterpret_cast<I64x8>(y) & (x >= -708.0));
}

inline void weights_of(const float* x, double peak, double temperature, F64x8& out) {
  F32x8 logits;
  __builtin_memcpy(&logits, x, sizeof logits);
  exp((__builtin_convertvector(logits, F64x8) - peak) / temperature, out);
}

// The same of n < 8 logits; the other weights are 0.
inline void weights_of(const float* x, int64_t n, double peak, double temperature, F64x8& out) {
  float logits[kDoubles];
  for (int64_t i = 0; i < kDoubles; ++i) logits[i] = i < n ? x[i] : kLowest;
  weights_of(logits, peak, temperature, out);
}

// Lanes of 32 bits, as many as Vec has.
typedef uint32_t Bits32 __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints32 __attribute__((vector_size(4 * kLanes)));
typedef float Floats32 __attribute__((vector_size(4 * kLanes)));

inline Vec as_floats(const Ints32& x) {
  return reinterpret_cast<Vec>(__builtin_convertvector(x, Floats32));
}

// At least the scores of one vector of logits, by at most 0.07 for u near 0.
//
// With v, the upper 31 bits of u, -log(-log(1 - u)) <= -log(u) <= (31 - log2(v)) ln 2, and a float's bits
// are at most 2^23 (log2(v) + 127). The 0.001 exceeds all rounding of scores above -4.
inline Vec bounds_of(Vec x, const Bits32& ids, const Draw& draw) {
  const Bits32 hash = hash_token(ids, draw.key.first, draw.key.second);
  const Vec v = as_floats(reinterpret_cast<Ints32>(hash >> 1));
  const Vec noise = fma(as_floats(reinterpret_cast<Ints32>(v)), broadcast(-0x1.62e43p-24f),
                        broadcast(109.517255f + 0.001f));
  return fma(sub(x, broadcast(draw.peak)), broadcast(draw.inverse_temperature), noise);
}

int64_t contender(const float* x, int64_t begin, int64_t n, const Draw& draw, float least) {
  constexpr int64_t kVectors = 4;
  uint32_t numbers[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) numbers[i] = static_cast<uint32_t>(i);
  Bits32 lane;
  __builtin_memcpy(&lane, numbers, sizeof lane);
  const Vec enough = broadcast(least);
  const auto ids = [&](int64_t i, int64_t size) {
    Bits32 result = lane + static_cast<uint32_t>(i);
    if (draw.ids) __builtin_memcpy(&result, draw.ids + i, static_cast<size_t>(size) * sizeof *draw.ids);
    return result;
  };
  int64_t i = begin;
  for (; i + kVectors * kLanes <= n; i += kVectors * kLanes) {
    Vec found[kVectors];
    for (int64_t j = 0; j < kVectors; ++j) {
      const int64_t at = i + j * kLanes;
      found[j] = bounds_of(load(x + at), ids(at, kLanes), draw);
    }
    Vec top = found[0];
    for (int64_t j = 1; j < kVectors; ++j) top = max(found[j], top);
    if (lanes_of(not_less(top, enough)) == 0) continue;
    for (int64_t j = 0; j < kVectors; ++j) {
      const unsigned hits = lanes_of(not_less(found[j], enough));
      if (hits != 0) return i + j * kLanes + __builtin_ctz(hits);
    }
  }
  for (; i < n; i += kLanes) {
    const int64_t rest = n - i < kLanes ? n - i : kLanes;
    const Vec bounds = bounds_of(load(x + i, rest), ids(i, rest), draw);
    const unsigned hits = lanes_of(not_less(bounds, enough)) & ((1u << rest) - 1);
    if (hits != 0) return i + __builtin_ctz(hits);
  }
  return n;
}

float peak(const float* x, int64_t n) { return peak_of(x, n); }

int64_t first_not_less(const float* x, int64_t n, float bound) { return first_from(x, n, bound); }

int64_t collect(const float* x, int64_t n, float bound, int32_t* ids) {
  const Vec b = broadcast(bound);
  int64_t count = 0, i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    unsigned lanes = lanes_of(not_less(load(x + i), b));
    for (; lanes != 0; lanes &= lanes - 1) {
      ids[count++] = static_cast<int32_t>(i + __builtin_ctz(lanes));
    }
  }
  for (; i < n; ++i) {
    if (x[i] >= bound) ids[count++] = static_cast<int32_t>(i);
  }
  return count;
}

// A group is one lane of `size` vectors in succession.
int64_t group_peaks(const float* x, int64_t n, int64_t size, float* peaks) {
  int64_t count = 0;
  for (int64_t i = 0; i + size * kLanes <= n; count += kLanes) {
    Vec top = load(x + i);
    i += kLanes;
    for (int64_t j = 1; j < size; ++j, i += kLanes) top = max(load(x + i), top);
    store(peaks + count, top);
  }
  return count;
}

void weights(const float* x, int64_t n, double peak, double temperature, double* out) {
  F64x8 w;
  int64_t i = 0;
  for (; i + kDoubles <= n; i += kDoubles) {
    weights_of(x + i, peak, temperature, w);
    __builtin_memcpy(out + i, &w, sizeof w);
  }
  if (i == n) return;
  weights_of(x + i, n - i, peak, temperature, w);
  for (int64_t j = 0; i < n; ++i, ++j) out[i] = w[j];
}

void run_sums(const float* x, int64_t n, double peak, double temperature, double* sums) {
  for (int64_t begin = 0; begin < n; begin += kRun) {
    const int64_t end = begin + kRun < n ? begin + kRun : n;
    F64x8 even = {}, odd = {}, w;
    int64_t i = begin;
    for (; i + 2 * kDoubles <= end; i += 2 * kDoubles) {
      weights_of(x + i, peak, temperature, w);
      even += w;
      weights_of(x + i + kDoubles, peak, temperature, w);
      odd += w;
    }
    for (; i < end; i += kDoubles) {
      weights_of(x + i, end - i, peak, temperature, w);
      even += w;
    }
    const F64x8 s = even + odd;
    *sums++ = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
  }
}

}  // namespace

const SampleKernels kSample = {peak,    first_not_less, collect,  group_peaks,
                               weights, run_sums, contender};

}  // namespace quire::QUIRE_ISA
