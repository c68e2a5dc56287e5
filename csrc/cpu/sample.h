// Passes over a row of logits for sampling (sampler.h). Plain data: see kernels.h.
//
// A weight is exp((x - peak) / temperature) in float64, with a relative error below 2^-51 in addition to
// that of its exponent, and 0 if the exponent is below -708.
#pragma once

#include <stdint.h>

#include "gumbel.h"

namespace quire {

// One draw among logits of at most `peak`. `ids` are their tokens; null: token i has logit i.
struct Draw {
  DrawKey key;
  const int32_t* ids;
  float peak, inverse_temperature;  // finite
};

enum : int64_t { kRun = 512 };  // logits whose weights are summed as one

struct SampleKernels {
  // The largest of n floats; NaN if there is one.
  float (*peak)(const float* x, int64_t n);
  // The first of n floats that is not less than `bound`, or n.
  int64_t (*first_from)(const float* x, int64_t n, float bound);
  // Indices, ascending, of those of n floats that are not less than `bound`; returns how many.
  int64_t (*collect)(const float* x, int64_t n, float bound, int32_t* ids);
  // The largest of each of at most n / size disjoint groups of `size` floats; returns how many.
  int64_t (*group_peaks)(const float* x, int64_t n, int64_t size, float* peaks);
  // Of n logits that are at most `peak`, which is finite; temperature > 0.
  void (*weights)(const float* x, int64_t n, double peak, double temperature, double* weights);
  // Sums of their weights by runs of kRun.
  void (*run_sums)(const float* x, int64_t n, double peak, double temperature, double* sums);
  // The first of the logits [begin, n) that may have a score of at least `least`, or n. A score is
  // (x - peak) / temperature + gumbel(id).
  int64_t (*contender)(const float* x, int64_t begin, int64_t n, const Draw& draw, float least);
};

}  // namespace quire
