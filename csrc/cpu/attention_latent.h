// Attention over latents (DeepSeek's MLA): the interface of its kernels (attention_latent.cpp) and its
// op. Plain data only: this header is compiled into every ISA.
#pragma once

#include "attention.h"

namespace quire {

// All heads read the same keys. A token's key is a row of the cache, [rope | latent], and its value is
// the latent alone:
//
//   score(t, h, s) = scale * (q_rope[t, h] . rope[s] + q[t, h] . latent[s])
//   out[t, h]      = softmax(score) latent
//
// `base` has what paged attention has too. Its head_dim is the latent's width, and `k` is the cache
// [blocks, block_size, rope + head_dim]. Its kv_heads are runs of heads that are computed together.
struct LatentArgs {
  AttentionArgs base;
  const void* q_rope;    // [tokens, heads, q_rope_width], of which the first `rope` elements count
  int64_t q_rope_stride; // elements, from token to token
  int64_t q_rope_width;  // elements, from head to head
  int64_t rope;
};

// Runs of equal size, at most kAttentionRows heads each.
static inline int64_t latent_runs(int64_t heads) {
  int64_t runs = (heads + kAttentionRows - 1) / kAttentionRows;
  while (heads % runs != 0) ++runs;
  return runs;
}

static inline int64_t latent_padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Elements from key to key in a thread's memory, and columns of a row's sums.
static inline int64_t latent_width(const LatentArgs& a) {
  return latent_padded(a.rope + a.base.head_dim, 32);
}
static inline int64_t latent_columns(const LatentArgs& a) { return latent_padded(a.base.head_dim, 32); }

// Floats of one partial result: maxima and sums of the rows, then their weighted values.
static inline int64_t latent_state_floats(const LatentArgs& a) {
  return attention_partial_floats(kAttentionRows, latent_columns(a));
}

// Floats of a thread's memory: a tile's keys, its values in pairs of keys, queries, scores, weights,
// scales, factors, and two partial results. Each piece begins at a multiple of 64 bytes.
static inline int64_t latent_room_floats(const LatentArgs& a) {
  const int64_t keys = kAttentionKeys * (latent_width(a) + latent_columns(a)) + 64;
  const int64_t rows = kAttentionRows * (latent_width(a) + 2 * kAttentionKeys + 1);
  return keys + rows + kAttentionKeys + 2 * latent_state_floats(a);
}

}  // namespace quire
