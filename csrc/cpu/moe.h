// A mixture of experts: each row's hidden states go through the experts that its router chose.
//
// Rows are sorted by expert, an expert's weights are read once for all of its rows, and a row's
// results are added in the order in which it chose them, so that they do not depend on the others.
#pragma once

#include <vector>

#include "kernels.h"
#include "packed_weight.h"
#include "pool.h"

namespace quire {

struct Moe {
  void* y;  // [rows, hidden], contiguous, as x is
  const void* x;
  DType dtype;
  int64_t rows, top_k;
  const int64_t* experts;  // [rows, top_k], each below gate_up.size(); the caller checks
  const float* weights;    // [rows, top_k]
  // By expert: [2 · width, hidden] with the epilogue silu_mul, and [hidden, width].
  std::vector<const PackedWeight*> gate_up, down;
  void* memory;  // moe_bytes of it, aligned to 64
};

int64_t moe_bytes(const Moe& moe);
void run_moe(const Kernels& kernels, Pool& pool, const Moe& moe);

}  // namespace quire
