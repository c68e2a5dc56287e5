// The passes of sample.h.
#include "sample.h"

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

const SampleKernels kSample = {peak, first_not_less, collect, group_peaks, weights, run_sums};

}  // namespace quire::QUIRE_ISA
