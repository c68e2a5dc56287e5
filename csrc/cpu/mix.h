// A weighted sum of rows. Plain data only: this header is compiled into every ISA.
#pragma once

#include "dtype.h"

namespace quire {

// y[r] = sum over i < top_k of weights[r, i] · z[place[r, i]], in ascending i, rounded once to the
// table entry's dtype. y and z are contiguous; a task is a row.
struct MixArgs {
  void* y;               // [rows, cols]
  const float* z;        // [places, cols]
  const int64_t* place;  // [rows, top_k]
  const float* weights;  // [rows, top_k]
  int64_t top_k, cols;
};

}  // namespace quire
