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
// The kinds u2 to u8 hold codes of so many bits, in groups of 16, 32, 64 or 128 values of k (k is
// padded to whole groups). A block is a sequence of groups: a head of the f16 scales of the 32 rows, and
// of their f16 offsets or negated zero points if they have any, a line each, and for every 16 values
// of k (a step) as many lines as a code has bits. Every line has 4 bytes of each of 16 rows:
//
//     group: │ scales │ (offsets) │ step 0 │ step 1 │ …
//     step:  │ ones │ twos 0 │ twos 1 │ fours 0 │ fours 1 │ fours 2 │ fours 3 │
//            u2: twos   u3: ones, twos   u4: fours   u5: ones, fours   u6: twos, fours
//
//     fours j   r0: k4j k4j+1 k4j+2 k4j+3 │ r1: …   bits 0–3: rows 0–15, bits 4–7: rows 16–31
//     twos j    the next 2 bits of the values of fours 2j (bits 0–1 and 2–3) and 2j + 1 (4–5, 6–7)
//     ones      the highest bit of the values of fours j, in the bits 2j and 2j + 1
//
// So a line of fours becomes one line of either tile of s8. u8 has lines of bytes, one of either tile
// in turn; u4_book is u4 with codes that stand for the 16 bytes of a codebook.
//
// A block of 8-bit floats (f8_e4m3, f8_e5m2) is a sequence of quads, 4 values of k (k is padded to 32):
// a line of each tile, whose 16 bytes of 4 rows have the first pairs of k before the second, so that
// they become two lines of bf16 by interleaving what the codes are looked up as.
//
//     quad: │ line of rows 0–15 │ line of rows 16–31 │
//     line: │ r0: k0 k1 │ … │ r3: k0 k1 │ r0: k2 k3 │ … │ r3: k2 k3 │ r4: k0 k1 │ …
//
// Every output is summed over k in one order, whatever `rows`, the place of its row and the number
// of threads: results are batch-invariant to the last bit. s8 sums exactly, in int32; its results
// are the same on every ISA. u2 to u8 sum a group exactly, and groups in ascending order.
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

// What a group has beside its scale: W = (q - zero) * scale with one zero for all groups, or with one of
// its own, or W = (q - zero) * scale + offset.
enum Second : int { kNoSecond, kZeroPoints, kOffsets, kSecondCount };

// What happens to x · Wᵀ + bias, rounded to y's type first: the same bits as an operation of its own.
// A gated one: W is gate rows and as many up rows; 16 of each make a block, gate in its first tile.
// f(code, name, functor of activation_math.h, whether it is gated) for each; files hold the codes:
#define QUIRE_ACTIVATIONS(f)                            \
  f(kSiluMul, silu_mul, SiluTimes, true)                \
  f(kGelu, gelu, Gelu, false)                           \
  f(kGeluTanh, gelu_tanh, GeluTanh, false)              \
  f(kRelu, relu, Relu, false)                           \
  f(kGeluTanhMul, gelu_tanh_mul, GeluTanhTimes, true)   \
  f(kGeluMul, gelu_mul, GeluTimes, true)                \
  f(kRelu2, relu2, Relu2, false)                        \
  f(kSwigluOaiMul, swigluoai_mul, SwigluOaiTimes, true)
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
constexpr int64_t kPrepareRows = 8;   // of x, a prepare task

// Rows of x and y are contiguous; strides are in elements, from row to row. The kinds bf16, s8_a16
// and f8 round x to bf16 first; s8 and u2 to u8 quantize each row of x: q = round(x * 127 / max|x|), or
// q = round(x / input_scale).
struct GemmArgs {
  void* y;        // [rows, columns]
  const void* x;  // [rows, k]
  int64_t rows, k;
  int64_t n;        // rows of W as packed: a block that is not full counts if it is not the last
  int64_t columns;  // of y: n, or half the rows of W for a gated epilogue
  int64_t y_stride, x_stride;
  DType y_dtype, x_dtype;
  const void* weight;        // packed
  // s8, s8_a16, f8 without groups: [n padded], W = q * scale; u2 …: units of a row's scales;
  // f8 in groups: [n padded / 32][groups][32].
  const float* scale;
  const int32_t* row_sum;    // s8: [n padded], sum of q
  const float* bias;         // [n padded] or null
  int64_t group;             // u2 …: 16, 32, 64 or 128; f8: 32, 64, 128, or 0 for a scale a row
  Second second;             // of a group of u2 …
  int32_t zero;              // u2 …, of all groups
  const uint8_t* codebook;   // u4_book: [16]
  const int32_t* permutation;  // u2 …: [k], the columns of x in the weight's order; or null
  float input_scale;         // of int8 x; 0: each row has its own
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
