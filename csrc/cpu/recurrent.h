// Recurrent layers: arguments of their kernels. Plain data only: this header is compiled into every
// ISA.
//
// A task is a part of one sequence's state; it computes the sequence's rows one after the other. So a
// row's bits depend neither on the step that computes it nor on threads.
#pragma once

#include "dtype.h"

namespace quire {

// A step's sequences: rows [query_start_loc[s], query_start_loc[s + 1]) begin with the state of slot
// from[s], and the state after row r goes to slot to[r]. -1 is a state of zeros, and no slot.
struct StateSteps {
  const int32_t* query_start_loc;  // [num + 1]
  const int32_t* from;             // [num]
  const int64_t* to;               // [rows]
  int64_t num;
};

enum ConvKind : int { kConvPlain, kConvSilu, kConvGated, kConvKindCount };

// y[r] = bias + sum over i of weight[i] · x[r - width + 1 + i], for each channel. If gated, a row of x is
// b, c and v: b · v is convolved, and the result multiplied by c. task = s * parts + part.
struct ConvArgs {
  void* y;
  const void* x;
  const float *weight, *bias;  // [width, channels], [channels] or null
  float* state;                // [slots, width - 1, channels]
  int64_t y_stride, x_stride;
  int64_t channels, width;
  int kind;
  StateSteps steps;
  int64_t parts, part_channels;
};
enum : int64_t { kMostConvWidth = 16 };

// The state of a head is a matrix [rows, columns]. task = (s * heads + head) * parts + part.
struct MatrixStateArgs {
  void* y;        // [heads * columns]
  const void* x;  // delta rule: q, k, v; Mamba-2: x, B, C
  const void *decay, *beta;  // the head's elements; Mamba-2's dt is `decay`
  const float *rate, *bias, *skip;
  float* state;  // [slots, heads, rows, columns]
  int64_t y_stride, x_stride, decay_stride, beta_stride;
  int64_t heads, groups;  // a group has one key and query
  int64_t rows, columns;
  bool row_decays;  // the delta rule's decay: one per row of the state, else per head
  float low, high;  // limits of Mamba-2's dt
  StateSteps steps;
  int64_t parts, part_columns;  // a multiple of kStateColumns
};
enum : int64_t { kStateColumns = 32, kStateTile = 8 };  // columns at a time; tokens at a time

// Floats of a thread's memory: keys and queries of a tile (with decays per row, those and their products
// too), values and results, and the state.
static inline int64_t state_rows_padded(const MatrixStateArgs& a) { return (a.rows + 15) / 16 * 16; }
static inline int64_t state_room_floats(const MatrixStateArgs& a) {
  const int64_t token = (a.row_decays ? 5 : 2) * state_rows_padded(a) + 2 * a.part_columns;
  return kStateTile * token + a.rows * a.part_columns;
}

struct RecurrentKernels {
  void (*causal_conv1d[kDTypeCount])(const ConvArgs&, int64_t task);
  void (*gated_delta_rule[kDTypeCount])(const MatrixStateArgs&, int64_t task, float* room);
  void (*mamba2_scan[kDTypeCount])(const MatrixStateArgs&, int64_t task, float* room);
};

}  // namespace quire
