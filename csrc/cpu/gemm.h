// y[rows, columns] = epilogue(x[rows, k] · Wᵀ (+ bias)), W [n, k] packed once (packed_weight.h).
//
// A weight is a sequence of blocks of 32 output rows; n is padded with zero rows. A block of the kinds
// bf16 and s8 is a sequence of steps of 64 bytes per row (32 bf16, 64 int8; k is padded with zeros).
// A step is two tiles of 16 rows, and a tile is one operand of AMX:
//
//     block b: rows 32b … 32b+31
//     ┌────────────── step 0: 2 KiB ──────────────┬──── step 1 ────┬── …
//     │ tile: rows 0–15, 1 KiB │ tile: rows 16–31 │                │
//     └───────────┬────────────┴──────────────────┴────────────────┘
//                 ▼  16 lines of 64 bytes; line i has 4 bytes of each of the 16 rows
//        line 0   │ r0: k0 k1 │ r1: k0 k1 │ … │ r15: k0 k1 │      bf16: 2 values of k per row
//        line 1   │ r0: k2 k3 │ r1: k2 k3 │ … │ r15: k2 k3 │      s8:   4 values of k per row
//          …
//        line 15  │ r0: k30 k31           …                │
//
// A line is one AVX-512 or two AVX2 registers whose 32-bit lanes belong to 16 output rows. This is VNNI
// order, so every ISA reads the same bytes in sequence. s8_a16 has the layout of bf16, with an int8
// for each bfloat16. The kinds f32 and f16 need no interleaving: a block is [k][32].
//
// The kinds u2 to u8 hold codes of 2 to 8 bits, in groups of 16, 32, 64 or 128 values of k (k is padded
// to whole groups). A block is a sequence of groups. A group begins with a line of the f16 scales of the
// 32 rows, and a line of their f16 offsets or negated zero points, if any. Then every 16 values of k
// (a step) have one line per bit of a code. A line has 4 bytes of each of 16 rows:
//
//     group: │ scales │ (offsets) │ step 0 │ step 1 │ …
//     step:  │ ones │ twos 0 │ twos 1 │ fours 0 │ fours 1 │ fours 2 │ fours 3 │
//            u2: twos   u3: ones, twos   u4: fours   u5: ones, fours   u6: twos, fours
//
//     fours j   r0: k4j k4j+1 k4j+2 k4j+3 │ r1: …   bits 0–3: rows 0–15, bits 4–7: rows 16–31
//     twos j    the next 2 bits of the values of fours 2j (bits 0–1 and 2–3) and 2j + 1 (4–5, 6–7)
//     ones      the highest bit of the values of fours j, in the bits 2j and 2j + 1
//
// So a line of fours becomes one line of each tile of s8. u8 has lines of bytes, alternating between
// the tiles. u4_book is u4 with codes that index the 16 bytes of a codebook.
//
// A block of 8-bit floats (f8_e4m3, f8_e5m2) is a sequence of quads of 4 values of k (k is padded to
// 32). A quad is one line per tile. Each 16 bytes of 4 rows have the first pairs of k before the second
// ones, so that interleaving the decoded bytes gives two lines of bf16.
//
//     quad: │ line of rows 0–15 │ line of rows 16–31 │
//     line: │ r0: k0 k1 │ … │ r3: k0 k1 │ r0: k2 k3 │ … │ r3: k2 k3 │ r4: k0 k1 │ …
//
// The order of an output's sum over k does not depend on `rows`, on the row's index or on the number of
// threads: results are batch-invariant to the bit. s8 sums exactly, in int32, with equal results on
// every ISA. u2 to u8 sum a group exactly, and groups in ascending order.
#pragma once

#include <stdint.h>

#include "dtype.h"
#include "tuning.h"

namespace quire {

enum DType : int;

enum WeightKind : int {
  kWeightF32,
  kWeightF16,  // float32 arithmetic
  kWeightBF16,
  kWeightS8,     // int8 x
  kWeightS8A16,  // bfloat16 x
  kWeightU4,     // int8 x, as up to u8
  kWeightU2,
  kWeightU3,
  kWeightU4Book,
  kWeightU5,
  kWeightU6,
  kWeightU8,
  kWeightF8E4M3,  // bfloat16 x
  kWeightF8E5M2,
  kWeightKindCount
};

// What a group has in addition to its scale: W = (q - zero) * scale with one zero for all groups or one
// per group, or W = (q - zero) * scale + offset.
enum Second : int { kNoSecond, kZeroPoints, kOffsets, kSecondCount };

// Epilogues of x · Wᵀ + bias, which is first rounded to y's type: the bits of a separate op. For a gated
// one, W has gate rows and as many up rows; a block has 16 of each, gate in the first tile.
// f(code, name, functor of activation_math.h, whether it is gated) for each. Files store the codes:
#define QUIRE_ACTIVATIONS(f)                            \
  f(kSiluMul, silu_mul, SiluTimes, true)                \
  f(kGelu, gelu, Gelu, false)                           \
  f(kGeluTanh, gelu_tanh, GeluTanh, false)              \
  f(kRelu, relu, Relu, false)                           \
  f(kGeluTanhMul, gelu_tanh_mul, GeluTanhTimes, true)   \
  f(kGeluMul, gelu_mul, GeluTimes, true)                \
  f(kRelu2, relu2, Relu2, false)                        \
  f(kSwigluOaiMul, swigluoai_mul, SwigluOaiTimes, true) \
  f(kRelu2Mul, relu2_mul, Relu2Times, true)             \
  f(kQuickGelu, quick_gelu, QuickGelu, false)
#define QUIRE_CODE(code, name, F, gated) code,
#define QUIRE_GATED(code, name, F, gated) gated,
enum Epilogue : int { kNoEpilogue, QUIRE_ACTIVATIONS(QUIRE_CODE) kEpilogueCount };
constexpr bool kGatedEpilogues[] = {false, QUIRE_ACTIVATIONS(QUIRE_GATED)};
#undef QUIRE_CODE
#undef QUIRE_GATED
static inline bool is_gated(Epilogue e) { return kGatedEpilogues[e]; }

constexpr int64_t kBlockRows = 32;    // output rows of a block
constexpr int64_t kStepBytes = 64;    // of one row, kinds bf16 and s8
constexpr int64_t kTileBytes = 1024;  // 16 rows of a step
constexpr int64_t kPrepareRows = 8;   // rows of x per prepare task

// Of a gated epilogue, a block's results of a row are half a line of y. The results of even blocks wait in
// `rows` [rows from `first` on][16] until those of the next block make whole lines of them; of the packed
// rows `from` … `to` - 1 only.
struct HalfLines {
  bf16* rows;
  int64_t first, from, to;
};

// Rows of x and y are contiguous; strides are in elements, from row to row. The kinds bf16, s8_a16
// and f8 round x to bf16 first; s8 and u2 to u8 quantize each row of x: q = round(x * 127 / max|x|), or
// q = round(x / input_scale).
struct GemmArgs {
  void* y;        // [rows, columns]
  const void* x;  // [rows, k]
  int64_t rows, k;
  int64_t n;        // packed rows of W: all of a block, except the last one
  int64_t columns;  // columns of y: n, or half the rows of W for a gated epilogue
  int64_t y_stride, x_stride;
  DType y_dtype, x_dtype;
  const void* weight;        // packed
  // s8, s8_a16, f8 without groups: [n padded], W = q * scale; u2 …: units of a row's scales;
  // f8 in groups: [n padded / 32][groups][32].
  const float* scale;
  const int32_t* row_sum;    // s8: [n padded], sum of q
  const float* bias;         // [n padded] or null
  int64_t group;             // u2 …: 16, 32, 64 or 128; f8: 32, 64, 128, or 0 for one scale per row
  Second second;             // u2 …
  int32_t zero;              // u2 …, for all groups
  const uint8_t* codebook;   // u4_book: [16]
  const int32_t* permutation;  // u2 …: [k], the columns of x in the weight's order; or null
  float input_scale;         // scale of int8 x; 0: one per row
  Epilogue epilogue;
  void* scratch;             // `scratch_bytes`, aligned to 64
  int threads;               // number of threads, which decides the size of tasks
  GemmTuning tuning;
  bool past_caches = false;  // y is larger than the caches: whole lines are stored past them
  HalfLines halves = {};     // none; with past_caches only
};

// One kind of weight on one ISA: first all prepare tasks, if any, which round or quantize kPrepareRows
// rows of x each; then all tasks.
struct Gemm {
  int64_t (*scratch_bytes)(const GemmArgs&);
  int64_t (*prepare_tasks)(const GemmArgs&);
  void (*prepare)(const GemmArgs&, int64_t task);
  int64_t (*tasks)(const GemmArgs&);
  void (*task)(const GemmArgs&, int64_t task);
};

}  // namespace quire
