// Arguments and table of paged attention. Plain data only: this header is compiled into every ISA.
#pragma once

#include "dtype.h"

namespace quire {

// Shape of attention's tiles: fixed, because results depend on them to the last bit.
constexpr int kAttentionRows = 64;        // most query rows (positions * heads a kv head) of a tile
constexpr int kAttentionKeys = 128;       // keys of a tile; tiles begin at multiples of it
constexpr int kAttentionPartition = 1024; // keys after which a partial result is merged
constexpr int kAttentionHeadDim = 256;    // largest head size

// The dtypes of a cache: those of tensors, and int8 with a scale a token and head.
enum : int { kInt8 = kDTypeCount, kCacheDTypeCount };

// Query rows of one sequence that are computed together, for one kv head at a time.
struct AttentionTile {
  int32_t seq;
  int32_t row;       // first row of q
  int32_t position;  // its position in the sequence
  int32_t rows;
};

// out[t, h] = softmax(scale * q[t, h] . k) v over the cached tokens of t's sequence up to t itself.
// q and out are [tokens, heads, head_dim] with their own dtype, heads contiguous within a token;
// k and v [blocks, kv_heads, block_size, head_dim] have the table entry's dtype, a block is
// contiguous. Of int8, an element is worth its product with the token's scale, in
// [blocks, kv_heads, block_size]. head_dim is a multiple of 8, block_size 8, 16 or 32.
struct AttentionArgs {
  void* out;
  const void* q;
  const void* k;
  const void* v;
  const bf16 *k_scale, *v_scale;   // contiguous; of an int8 cache
  const int32_t* query_start_loc;  // [num_seqs + 1]
  const int32_t* seq_lens;         // [num_seqs], this step's tokens included
  const int32_t* block_tables;     // [num_seqs, block_table_stride]
  int64_t num_seqs, block_table_stride;
  int64_t heads, kv_heads, head_dim, block_size;
  int64_t out_stride, q_stride;  // elements, from token to token
  int64_t k_block_stride, v_block_stride;
  int64_t window;  // attend to the last `window` tokens only; 0 is all
  float scale;     // positive
  int q_dtype;
  const AttentionTile* tiles;
  int64_t num_tiles;
  int64_t task_heads;  // kv heads of a tile that a task computes
};

struct AttentionKernels {
  // By the dtype of the cache. Computes task `task` of num_tiles * ceil(kv_heads / task_heads).
  // A token's result depends on its sequence's tokens alone, not on how tiles cut the step.
  void (*paged_attention[kCacheDTypeCount])(const AttentionArgs&, int64_t task);
  void (*exp2)(float* y, const float* x, int64_t count);  // the softmax's, for its test
};

}  // namespace quire
