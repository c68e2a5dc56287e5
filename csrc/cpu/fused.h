// Arguments and table of the small ops, which a decoder runs between its matrix products.
//
// Rows are split into tasks of `task_rows` rows (row_blocks.h has the rule). A kernel computes one task,
// [task * task_rows, …), on one thread. Every tensor has the table entry's dtype, unless its type is
// written out. Strides are in elements from row to row. Sums and functions are in float. Plain data
// only: this header is compiled into every ISA.
#pragma once

#include "gemm.h"

namespace quire {

// y[r] = f(x[r]); y may be x. Gated activations turn 2 · cols of a row, gate and then up, into cols.
struct UnaryArgs {
  void* y;
  const void* x;
  int64_t rows, cols;
  int64_t y_stride, x_stride;
  float parameter;  // scale: x · parameter; softcap: parameter · tanh(x / parameter); xielu: its `positive`
  float negative, linear;  // of xielu
  int64_t task_rows;
};

// y[r] = a[r] + b[r]; y may be either.
struct AddArgs {
  void* y;
  const void *a, *b;
  int64_t rows, cols;
  int64_t y_stride, a_stride, b_stride;
  int64_t task_rows;
};

// y[r] = norm(x[r]); with a residual, residual_out[r] = x[r] + residual[r], rounded to the dtype, in place
// of x[r]. RMSNorm is weight · (x / rms(x)), rounded to the weight's dtype before the product, and to the
// table entry's dtype after it. A wide weight is float, so only the second rounding happens. LayerNorm is
// (x - mean) / sqrt(variance + eps) · weight + bias, rounded once.
// y may be x. residual_out may be residual or x, and y may be the other one; any other overlap is an error.
struct NormArgs {
  void* y;
  void* residual_out;  // null, as residual, if there is none
  const void *x, *residual;
  const void *weight, *bias;  // [cols]; the bias is LayerNorm's
  int64_t rows, cols;
  int64_t y_stride, residual_out_stride, x_stride, residual_stride;
  float eps;
  bool wide_weight;
  int64_t task_rows;
};

// y[r] = norm(x[r]) · f(gate[r]), or norm(x[r] · f(gate[r])): x / rms(x) · weight of each group of columns,
// with f(g) = sigmoid(g), g · sigmoid(g) or g. No weight is no norm; then `each` columns of x may share
// one of the gate's.
enum Gate : int { kSigmoid, kSilu, kFactor };
struct GatedNormArgs {
  void* y;
  const void *x, *gate;
  const float* weight;  // [cols], or [group] if it is one for all groups; or null
  int64_t rows, cols, group;
  int64_t y_stride, x_stride, gate_stride;
  int64_t each;
  float eps;
  Gate kind;
  bool norm_first, one_weight;
  int64_t task_rows;
};

// The ops between the qkv product and attention. A row has heads of q, k and v. These are normalized
// per head (unless q_norm, k_norm or v_norm is null), and q and k are rotated (unless cos_sin is null). q goes to q_out, k and
// v go to slot_mapping[r] of the paged cache, v only if v_cache is not null. The bits are those of
// rms_norm, rotation and copy.
// The cache has the table entry's dtype, bfloat16, or 8 bits with head_dim at most 256. With k_scale and
// v_scale, a head of k or v is stored as round(x / scale), with the scale max|x| / most, rounded up, at
// the token's index; most is 127, 448 (E4M3) or 57344 (E5M2); int4.h says how int4 is. Without them, 8-bit floats hold x / unit,
// saturated.
struct RopeKvArgs {
  void* q_out;          // [rows, heads, head_dim], contiguous
  const void *q, *k, *v;  // [rows, heads or kv_heads, head_dim]; the heads of a row are contiguous
  int64_t q_stride, k_stride, v_stride;
  const int64_t* positions;
  const float* cos_sin;         // [max positions, rotary_dim]
  const void *q_norm, *k_norm, *v_norm;  // [head_dim]
  bool wide_norms;              // the norms are float
  void *k_cache, *v_cache;      // [blocks, kv_heads, block_size, head_dim]
  int cache_dtype;
  void *k_scale, *v_scale;      // [blocks, kv_heads, block_size], contiguous; or null
  uint8_t* k_signs;             // [blocks, kv_heads, block_size, head_dim / 8] of int4
  float k_unit, v_unit;         // for 8-bit floats without scales
  const int64_t* slot_mapping;  // block * block_size + offset
  int64_t block_size, block_stride, head_stride;  // a token's elements are contiguous
  int64_t rows, heads, kv_heads, head_dim, rotary_dim;
  float eps;
  int64_t max_positions, slots;  // upper limits of positions and slot_mapping; the caller checks them
  int64_t task_rows;
};

// The largest value of each piece of a row, and its first index. A row is split into pieces of
// kArgmaxColumns, and task = row * pieces + piece. NaN counts as the largest.
struct ArgmaxArgs {
  const float* x;
  int64_t rows, cols, x_stride;
  float* peaks;     // [rows, pieces]
  int64_t* tokens;  // [rows, pieces]
};
enum : int64_t { kArgmaxColumns = 16384 };

// One entry per epilogue (gemm.h) and dtype.
struct ActivationKernels {
  void (*of[kEpilogueCount][kDTypeCount])(const UnaryArgs&, int64_t task);
};

// f(name, arguments) for each kernel that is a template of the dtype.
#define QUIRE_FUSED_KERNELS(f)  \
  f(rms_norm, NormArgs)         \
  f(layer_norm, NormArgs)       \
  f(gated_norm, GatedNormArgs)  \
  f(scale, UnaryArgs)           \
  f(softcap, UnaryArgs)         \
  f(xielu, UnaryArgs)           \
  f(add_rows, AddArgs)          \
  f(rope_kv_write, RopeKvArgs)

struct FusedKernels {
#define QUIRE_ENTRY(name, Args) void (*name[kDTypeCount])(const Args&, int64_t task);
  QUIRE_FUSED_KERNELS(QUIRE_ENTRY)
#undef QUIRE_ENTRY
  const ActivationKernels* activation;
  void (*argmax)(const ArgmaxArgs&, int64_t task);
};

}  // namespace quire
