// One linear layer on the pool.
#pragma once

#include "kernels.h"
#include "packed_weight.h"
#include "pool.h"

namespace quire {

// y[rows, columns] = epilogue(x[rows, k] · Wᵀ (+ bias)); strides in elements. Three parts: `start`;
// x made ready, if `prepare_tasks`; `multiply`.
struct Linear {
  const Gemm* gemm;
  GemmArgs args;
};

// Takes the pool's scratch memory until `multiply`.
Linear start(const Kernels& kernels, Pool& pool, const PackedWeight& weight, void* y, DType y_dtype,
             int64_t y_stride, const void* x, DType x_dtype, int64_t x_stride, int64_t rows);
void prepare(Pool& pool, const Linear& linear);
void multiply(Pool& pool, const Linear& linear);

}  // namespace quire
