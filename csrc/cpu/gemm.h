// y[rows, columns] = epilogue(x[rows, k] · Wᵀ (+ bias)), W [n, k] packed once (packed_weight.h).
//
// The weight lies in blocks of 32 output rows, one after the other; n is padded with zero rows.
// A block of the kinds bf16 and s8 is a sequence of steps of 64 bytes a row (32 bf16, 64 int8; k is
// padded with zeros), a step is two tiles of 16 rows, and a tile is what AMX multiplies by:
//
//     block b: rows 32b … 32b+31
//     ┌────────────── step 0: 2 KiB ──────────────┬──── step 1 ────┬── …
//     │ tile: rows 0–15, 1 KiB │ tile: rows 16–31 │                │
//     └───────────┬────────────┴──────────────────┴────────────────┘
//                 ▼  16 lines of 64 bytes; line i has 4 bytes of each of the 16 rows
//        line 0   │ r0: k0 k1 │ r1: k0 k1 │ … │ r15: k0 k1 │      bf16: 2 values of k a row
//        line 1   │ r0: k2 k3 │ r1: k2 k3 │ … │ r15: k2 k3 │      s8:   4 values of k a row
//          …
//        line 15  │ r0: k30 k31           …                │
//
// A line is one AVX-512 or two AVX2 registers whose 32-bit lanes belong to 16 output rows: VNNI
// order, so that every ISA reads the same bytes from the first to the last. s8_a16 lies as bf16 does,
// with an int8 for each bfloat16. The kinds f32 and f16 need no interleaving: a block is [k][32].
//
// A block of the kind u4 is a sequence of groups of 32, 64 or 128 values of k (k is padded to whole
// groups): a head of two lines, f16 scales and f16 offsets or negated zero points of the 32 rows, and
// a line for every 4 values of k, whose bytes hold rows 0–15 in the low and rows 16–31 in the high
// half. So a line becomes one line of either tile of s8.
//
//     group: │ scales │ offsets │ line 0 │ line 1 │ …        line 0 │ r0: k0 k1 k2 k3 │ r1: … │ low
//                                                                   │ r16: k0 …       │ r17: …│ high
//
// Every output is summed over k in one order, whatever `rows`, the place of its row and the number
// of threads: results are batch-invariant to the last bit. s8 sums exactly, in int32; its results
// are the same on every ISA. u4 sums a group exactly, and groups in ascending order.
#pragma once

#include <stdint.h>

#include "tuning.h"

namespace quire {

enum DType : int;

enum WeightKind : int {
  kWeightF32,
  kWeightF16,  // float32 arithmetic
  kWeightBF16,
  kWeightS8,     // int8 x
  kWeightS8A16,  // bfloat16 x
  kWeightU4,     // int8 x
  kWeightKindCount
};

// What happens to x · Wᵀ + bias, rounded to y's type first: the same bits as an operation of its own.
// silu_mul: W is gate rows and as many up rows; 16 of each make a block, gate in its first tile.
enum Epilogue : int { kNoEpilogue, kSiluMul, kGelu, kGeluTanh, kRelu, kEpilogueCount };

constexpr int64_t kBlockRows = 32;    // output rows of a block
constexpr int64_t kStepBytes = 64;    // of one row, kinds bf16 and s8
constexpr int64_t kTileBytes = 1024;  // 16 rows of a step
constexpr int64_t kPrepareRows = 8;   // of x, a prepare task
constexpr int64_t kU4HeadBytes = 2 * 2 * kBlockRows;  // of a group of 4-bit weights

// Rows of x and y are contiguous; strides are in elements, from row to row. The kinds bf16 and s8_a16
// round x to bf16 first; s8 and u4 quantize each row of x: q = round(x * 127 / max|x|).
struct GemmArgs {
  void* y;        // [rows, columns]
  const void* x;  // [rows, k]
  int64_t rows, k;
  int64_t n;        // rows of W as packed: a block that is not full counts if it is not the last
  int64_t columns;  // of y: n, or half the rows of W for silu_mul
  int64_t y_stride, x_stride;
  DType y_dtype, x_dtype;
  const void* weight;        // packed
  const float* scale;        // s8, s8_a16: [n padded], W = q * scale; u4: units of a row's scales
  const int32_t* row_sum;    // s8: [n padded], sum of q
  const float* bias;         // [n padded] or null
  int64_t group;             // u4: 32, 64 or 128
  bool zero_points;          // u4: W = (q - zero) * scale, else W = q * scale + offset
  Epilogue epilogue;
  void* scratch;             // `scratch_bytes`, aligned to 64
  int threads;               // how many share the tasks: for their size alone
  GemmTuning tuning;
};

// One kind of weight on one ISA: first all prepare tasks (none is common), which round or
// quantize kPrepareRows rows of x each, then all tasks.
struct Gemm {
  int64_t (*scratch_bytes)(const GemmArgs&);
  int64_t (*prepare_tasks)(const GemmArgs&);
  void (*prepare)(const GemmArgs&, int64_t task);
  int64_t (*tasks)(const GemmArgs&);
  void (*task)(const GemmArgs&, int64_t task);
};

}  // namespace quire
