// Paged attention of any shape: the interface of its kernel (attention_any.cpp) and its op.
#pragma once

#include "attention.h"

namespace quire {

// Whether the kernels of attention.cpp and attention_amx.cpp take this shape.
static inline bool attention_fits(const AttentionArgs& a) {
  return a.head_dim >= 8 && a.head_dim <= kAttentionHeadDim && a.head_dim % 8 == 0 &&
         (a.block_size == 8 || a.block_size == 16 || a.block_size == 32) &&
         a.heads / a.kv_heads <= kAttentionRows;
}

// Of any other shape each thread has memory of its own, at `partials` of its arguments, in floats:
// keys and values of a tile, as many of their scales, and of each row of a task its query, its sums,
// its maximum, its sum of weights and by what a tile shrinks them.
static inline int64_t attention_any_width(const AttentionArgs& a) {
  return (a.head_dim + 15) / 16 * 16;
}
static inline int64_t attention_any_rows(const AttentionArgs& a) {
  const int64_t group = a.heads / a.kv_heads;
  return group > kAttentionRows ? group : kAttentionRows;
}
static inline int64_t attention_any_floats(const AttentionArgs& a) {
  const int64_t width = attention_any_width(a), rows = attention_any_rows(a);
  return 2 * kAttentionKeys * (width + 1) + rows * 2 * width + (3 * rows + 15) / 16 * 16;
}

}  // namespace quire
