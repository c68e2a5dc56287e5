// Arguments and table of the small operations: what a decoder does between its matrix products.
//
// Rows are cut into tasks of `task_rows` rows (row_blocks.h has the rule); a kernel computes one
// task, [task * task_rows, …), on one thread. Every tensor has the table entry's dtype unless its
// type is written out; strides are in elements and count from row to row; sums and functions are
// in float. Plain data only: this header is compiled into every ISA.
#pragma once

#include "dtype.h"

namespace quire {

// y[r] = f(x[r]); y may be x. silu_mul, gelu_tanh_mul and gelu_mul read 2 · cols of a row, gate and then
// up, into cols.
struct UnaryArgs {
  void* y;
  const void* x;
  int64_t rows, cols;
  int64_t y_stride, x_stride;
  float parameter;  // scale: x · parameter; softcap: parameter · tanh(x / parameter)
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

// y[r] = weight · (x[r] / rms(x[r])), rounded to the weight's dtype before the product with it, and to
// the table entry's after it. A wide weight is of float: then the first rounding is none.
// y may be x; any other overlap is an error.
struct RmsNormArgs {
  void* y;
  const void* x;
  const void* weight;  // [cols]
  int64_t rows, cols;
  int64_t y_stride, x_stride;
  float eps;
  bool wide_weight;
  int64_t task_rows;
};

// residual_out[r] = x[r] + residual[r], rounded to the dtype; y[r] = rms_norm(residual_out[r]).
// residual_out may be residual or x, and y may be the other one; any other overlap is an error.
struct AddRmsNormArgs {
  void* y;
  void* residual_out;
  const void *x, *residual;
  const void* weight;  // [cols]
  int64_t rows, cols;
  int64_t y_stride, residual_out_stride, x_stride, residual_stride;
  float eps;
  bool wide_weight;
  int64_t task_rows;
};

// y[r] = (x[r] - mean) / sqrt(variance + eps) * weight + bias, rounded once; y may be x.
struct LayerNormArgs {
  void* y;
  const void* x;
  const void *weight, *bias;  // [cols]
  int64_t rows, cols;
  int64_t y_stride, x_stride;
  float eps;
  int64_t task_rows;
};

// residual_out[r] = x[r] + residual[r], rounded to the dtype; y[r] = layer_norm(residual_out[r]).
// residual_out may be residual or x, and y may be the other one; any other overlap is an error.
struct AddLayerNormArgs {
  void* y;
  void* residual_out;
  const void *x, *residual;
  const void *weight, *bias;  // [cols]
  int64_t rows, cols;
  int64_t y_stride, residual_out_stride, x_stride, residual_stride;
  float eps;
  int64_t task_rows;
};

// y[r] = weight[ids[r]] (+ position_weight[positions[r]], unless that is null). Ids below `vocab` and
// positions below `max_positions` are the caller's to check.
struct EmbeddingArgs {
  void* y;
  const int64_t* ids;
  const void* weight;
  const int64_t* positions;
  const void* position_weight;
  int64_t rows, cols;
  int64_t y_stride, weight_stride, position_stride;
  int64_t vocab, max_positions;
  int64_t task_rows;
};

// Rotary embedding of `heads` heads a row, in the NeoX order: element i of a head turns together
// with element i + rotary_dim / 2, elements from rotary_dim on are copied. y may be x.
struct RotaryArgs {
  void* y;        // [rows, heads, head_dim]
  const void* x;  // [rows, heads, head_dim]
  const int64_t* positions;
  const float* cos_sin;  // [max positions, rotary_dim]: cosines, then sines
  int64_t rows, heads, head_dim, rotary_dim;
  int64_t y_stride, x_stride, x_head_stride;
  int64_t max_positions;  // of cos_sin; the caller checks
  int64_t task_rows;
};

// What stands between the qkv product and attention, a row of which is heads of q, k and v:
// q and k are normalized a head (unless q_norm / k_norm is null), turned (unless cos_sin is null);
// q goes to q_out, k and v into slot_mapping[r] of the paged cache. Same bits as rms_norm, rotary
// and a copy, one after the other.
// The cache is of the table entry's dtype, or bfloat16, or of 8 bits and head_dim at most 256. Where
// there are k_scale and v_scale, a head of k or v is stored as round(x / scale), with the scale
// max|x| / most, rounded up, in its token's place; most is 127, 448 (E4M3) or 57344 (E5M2). Else
// 8-bit floats hold x / unit, and the largest they can where that is larger.
struct RopeKvArgs {
  void* q_out;          // [rows, heads, head_dim], contiguous
  const void *q, *k, *v;  // [rows, heads or kv_heads, head_dim]; the heads of a row are contiguous
  int64_t q_stride, k_stride, v_stride;
  const int64_t* positions;
  const float* cos_sin;         // [max positions, rotary_dim]
  const void *q_norm, *k_norm;  // [head_dim]
  bool wide_norms;              // these two are of float
  void *k_cache, *v_cache;      // [blocks, kv_heads, block_size, head_dim]
  int cache_dtype;
  bf16 *k_scale, *v_scale;      // [blocks, kv_heads, block_size], contiguous; or null
  float k_unit, v_unit;         // of 8-bit floats without scales
  const int64_t* slot_mapping;  // block * block_size + offset
  int64_t block_size, block_stride, head_stride;  // a token's elements are contiguous
  int64_t rows, heads, kv_heads, head_dim, rotary_dim;
  float eps;
  int64_t max_positions, slots;  // what positions and slot_mapping are below; the caller checks
  int64_t task_rows;
};

// The largest of each piece of a row and its first index; a row is cut into pieces of
// kArgmaxColumns, and task = row * pieces + piece. NaN outranks everything.
struct ArgmaxArgs {
  const float* x;
  int64_t rows, cols, x_stride;
  float* peaks;     // [rows, pieces]
  int64_t* tokens;  // [rows, pieces]
};
enum : int64_t { kArgmaxColumns = 16384 };

struct FusedKernels {
  void (*rms_norm[kDTypeCount])(const RmsNormArgs&, int64_t task);
  void (*add_rms_norm[kDTypeCount])(const AddRmsNormArgs&, int64_t task);
  void (*layer_norm[kDTypeCount])(const LayerNormArgs&, int64_t task);
  void (*add_layer_norm[kDTypeCount])(const AddLayerNormArgs&, int64_t task);
  void (*silu_mul[kDTypeCount])(const UnaryArgs&, int64_t task);
  void (*gelu_tanh_mul[kDTypeCount])(const UnaryArgs&, int64_t task);
  void (*gelu_mul[kDTypeCount])(const UnaryArgs&, int64_t task);
  void (*gelu[kDTypeCount])(const UnaryArgs&, int64_t task);
  void (*gelu_tanh[kDTypeCount])(const UnaryArgs&, int64_t task);
  void (*relu[kDTypeCount])(const UnaryArgs&, int64_t task);
  void (*scale[kDTypeCount])(const UnaryArgs&, int64_t task);
  void (*softcap[kDTypeCount])(const UnaryArgs&, int64_t task);
  void (*add[kDTypeCount])(const AddArgs&, int64_t task);
  void (*embedding[kDTypeCount])(const EmbeddingArgs&, int64_t task);
  void (*rotary[kDTypeCount])(const RotaryArgs&, int64_t task);
  void (*rope_kv_write[kDTypeCount])(const RopeKvArgs&, int64_t task);
  void (*argmax)(const ArgmaxArgs&, int64_t task);
};

}  // namespace quire
