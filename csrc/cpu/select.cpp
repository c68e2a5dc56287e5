// Argmax and top-k of float logits: comparisons only, so the answers are exact on every ISA.
#include "select.h"

#include "simd.h"

namespace quire::QUIRE_ISA {

namespace {

constexpr float kLowest = -__builtin_inff();

// The largest of n floats; NaN if there is one.
float peak_of(const float* x, int64_t n) {
  Vec top0 = broadcast(kLowest), top1 = top0;
  Mask sick = no_lanes();
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const Vec a = load(x + i), b = load(x + i + kLanes);
    top0 = max(a, top0);  // NaN leaves it as it was
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
int64_t first_from(const float* x, int64_t n, float bound) {
  const Vec b = broadcast(bound);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const unsigned lanes = lanes_of(not_less(load(x + i), b));
    if (lanes != 0) return i + __builtin_ctz(lanes);
  }
  while (i < n && !(x[i] >= bound)) ++i;
  return i;
}

// The k-th largest of n floats (k from 1), which are left in another order. Hoare's selection.
float kth_largest(float* x, int64_t n, int64_t k) {
  int64_t low = 0, high = n - 1;
  const int64_t at = k - 1;
  while (low < high) {
    // The median of three makes runs of sorted or equal values cheap.
    const float a = x[low], b = x[low + (high - low) / 2], c = x[high];
    const float pivot = a < b ? (b < c ? b : (a < c ? c : a)) : (a < c ? a : (b < c ? c : b));
    int64_t i = low, j = high;
    while (i <= j) {
      while (x[i] > pivot) ++i;
      while (x[j] < pivot) --j;
      if (i <= j) {
        const float swapped = x[i];
        x[i++] = x[j];
        x[j--] = swapped;
      }
    }
    if (at <= j) {
      high = j;
    } else if (at >= i) {
      low = i;
    } else {
      break;
    }
  }
  return x[at];
}

constexpr int64_t kGroup = 16;

}  // namespace

void argmax(const ArgmaxArgs& a, int64_t task) {
  const int64_t pieces = (a.cols + kArgmaxColumns - 1) / kArgmaxColumns;
  const int64_t begin = task % pieces * kArgmaxColumns;
  const int64_t n = a.cols - begin < kArgmaxColumns ? a.cols - begin : kArgmaxColumns;
  const float* x = a.x + task / pieces * a.x_stride + begin;
  const float peak = peak_of(x, n);
  a.peaks[task] = peak;
  a.tokens[task] = peak == peak ? begin + first_from(x, n, peak) : -1;
}

// The k-th largest of the groups' maxima is a bound that at least k elements reach, and few more:
// only they are looked at one by one.
int64_t top_k(const TopKArgs& a) {
  const int64_t groups = a.cols / kGroup;
  float bound = kLowest;
  if (a.k <= groups) {
    float* maxima = a.scratch + a.cols;
    for (int64_t g = 0; g < groups; ++g) maxima[g] = peak_of(a.x + g * kGroup, kGroup);
    bound = kth_largest(maxima, groups, a.k);
  }
  int64_t count = 0;
  for (int64_t i = 0; (i += first_from(a.x + i, a.cols - i, bound)) < a.cols; ++i) {
    a.ids[count] = i;
    a.scratch[count++] = a.x[i];
  }
  if (count == a.k) return count;
  const float least = kth_largest(a.scratch, count, a.k);
  int64_t kept = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (a.x[a.ids[i]] >= least) a.ids[kept++] = a.ids[i];
  }
  return kept;
}

}  // namespace quire::QUIRE_ISA
