// What the kernels of 4-bit weights share on an ISA: where things lie, the tasks, the end of a group.
#pragma once

#include "gemm_parts.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t kU4Chunk = 96;  // rows of x a task
constexpr int64_t kU4TileRows = 16;

inline int64_t u4_groups(const GemmArgs& a) { return ceil_div(a.k, a.group); }
inline int64_t u4_group_bytes(const GemmArgs& a) {
  return kU4HeadBytes + a.group * kBlockRows / 2;
}
inline int64_t u4_block_bytes(const GemmArgs& a) { return u4_groups(a) * u4_group_bytes(a); }

// x in the scratch: int8 rows with zeros to the end of the last group, a scale a row, and the sum of
// each group of a row. A line beyond keeps the rows of a tile out of each other's cache sets; rows
// are padded to whole tiles, of which AMX computes all and uses some.
struct U4Input {
  int8_t* q;
  int64_t stride;
  float *scale, *sum;

  explicit U4Input(const GemmArgs& a)
      : q(static_cast<int8_t*>(a.scratch)),
        stride(round_up(a.k, larger(a.group, kStepBytes)) + 64),
        scale(reinterpret_cast<float*>(q + round_up(a.rows, kU4TileRows) * stride)),
        sum(scale + a.rows) {}
};

// How a call is cut into tasks: chunks of rows, and groups of blocks of some 64 KiB.
struct U4Cut {
  int64_t chunks, task_blocks, parts;

  explicit U4Cut(const GemmArgs& a) : chunks(ceil_div(a.rows, kU4Chunk)) {
    const int64_t blocks = ceil_div(a.n, kBlockRows);
    const int64_t fair = blocks * chunks / (a.threads * tuned(a.tuning.thread_tasks, 8));
    const int64_t most = tuned(a.tuning.group_bytes, 64 << 10) / u4_block_bytes(a);
    task_blocks = larger(smaller(fair, most), 1);
    parts = ceil_div(blocks, task_blocks);
  }
};

// The end of a group, for the columns j … j + kLanes - 1 of a block.
struct U4GroupEnd {
  Vec scale, offset;

  U4GroupEnd(const GemmArgs& a, const uint8_t* head, int64_t j) {
    const f16* at = reinterpret_cast<const f16*>(head) + j;
    const Vec second = load(at + kBlockRows);
    scale = load(at);
    offset = a.zero_points ? mul(scale, second) : second;
  }
  // The sum with what a group adds to it: the products of q and x, and x alone, summed.
  Vec add_to(Vec sum, Vec products, float x_sum) const {
    return fma(offset, broadcast(x_sum), fma(scale, products, sum));
  }
};

// The end of `rows` rows from r on, of the packed rows n0 … n0+31.
inline void u4_finish(const GemmArgs& a, const U4Input& x, int64_t r, int64_t rows, int64_t n0,
                      float* sums) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < kBlockRows; ++j) sums[i * kBlockRows + j] *= a.scale[n0 + j] * x.scale[r + i];
  }
  finish(a, r, rows, n0, sums);
}

}  // namespace
}  // namespace quire::QUIRE_ISA
