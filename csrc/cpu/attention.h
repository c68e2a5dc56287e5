// Arguments and table of paged attention. Plain data only: this header is compiled into every ISA.
#pragma once

#include "dtype.h"
#include "tuning.h"

namespace quire {

// Sizes of attention's tiles. Those of keys are fixed, because results depend on them to the bit.
constexpr int kAttentionRows = 64;        // max query rows (positions * heads per kv head) of a tile
constexpr int kAttentionMostRows = 256;   // of kernels that take larger tiles (tile_rows)
constexpr int kAttentionKeys = 128;       // keys of a tile; tiles begin at multiples of it
constexpr int kAttentionPartition = 1024; // keys after which a partial result is merged
constexpr int kAttentionHeadDim = 256;    // largest head size (attention_any.h: of any other shape)

// A task: query rows of one sequence, for some kv heads one after the other, over all keys that they
// see. A part is such a task for one head, over some partitions of the keys.
struct AttentionTask {
  int32_t seq;
  int32_t row;       // first row of q
  int32_t position;  // its position in the sequence
  int32_t rows;
  int32_t head, end_head;
  int32_t begin, end;   // keys
  int32_t merge, part;  // if keys are split: merge and part of the first head; else merge is -1
};

// The parts of a tile and head. The task that finishes the last one merges all, in order. If heads
// are computed together, this is the first one's, and the others' memory follows.
struct AttentionMerge {
  int64_t at;  // of the first part's partial result, in floats; the others follow
  int32_t parts;
  int32_t left;  // unfinished parts
};

// out[t, h] = softmax(scale * q[t, h] . k) v over the cached tokens of t's sequence up to t, or if not
// causal, over all of them. A causal model's sequences with a 1 in `whole` see those behind t, too.
// q and out are [tokens, heads, head_dim] with their own dtype, heads contiguous within a token.
// k and v are [blocks, kv_heads, block_size, head_dim] with the table entry's dtype, contiguous within
// a block. Scales, if any, are [blocks, kv_heads, block_size]: an element is multiplied by its
// token's scale. `packed` keys and values are those of int4.h, with k_signs [blocks, kv_heads,
// block_size, head_dim / 8]. With sinks, the softmax of head h has one more score, sinks[h], that has
// no value.
struct AttentionArgs {
  void* out;
  const void* q;
  const void* k;
  const void* v;
  const void *k_scale, *v_scale;   // contiguous; for integers and 8-bit floats, or null
  const uint8_t* k_signs;          // contiguous; null unless packed
  const int32_t* query_start_loc;  // [num_seqs + 1]
  const int32_t* seq_lens;         // [num_seqs], this step's tokens included
  const int32_t* block_tables;     // [num_seqs, block_table_stride]
  int64_t num_seqs, block_table_stride;
  int64_t heads, kv_heads, head_dim, block_size;
  int64_t out_stride, q_stride;  // elements, from token to token
  int64_t k_block_stride, v_block_stride;
  int64_t window;  // attend only to tokens at a smaller distance; 0 is all
  bool chunked;    // or only to those of the same `window` tokens, which begin at multiples of it
  bool causal;
  float scale;     // positive
  float softcap;   // scores s become softcap · tanh(s / softcap); 0 is off
  float v_unit;    // factor of v: 1, except for 8-bit floats without scales
  int q_dtype;
  AttentionTuning tuning;
  const AttentionTask* tasks;
  AttentionMerge* merges;
  float* partials;
  const float* sinks;  // [heads], or null
  bool packed;         // two elements per byte
  const int32_t* whole = nullptr;  // [num_seqs], or null
  int64_t tile_rows = kAttentionRows;  // max query rows of a tile, from the kernel table
};

// Tokens after its own that a row of sequence `seq` sees; the maximum if it sees all.
static inline int64_t attention_ahead(const AttentionArgs& a, int64_t seq) {
  constexpr int64_t kAll = int64_t{1} << 30;
  if (a.causal) return a.whole != nullptr && a.whole[seq] != 0 ? kAll : 0;
  return a.window > 0 ? a.window - 1 : kAll;
}

// The first token that the one at `position` sees.
static inline int64_t attention_first(const AttentionArgs& a, int64_t position) {
  if (a.window <= 0) return 0;
  if (a.chunked) return position - position % a.window;
  return position < a.window ? 0 : position - a.window + 1;
}

// Floats of one partial result: each row's maximum, sum and weighted values, in the kernel's order.
// The number of rows is padded to whole vectors.
static inline int64_t attention_partial_floats(int64_t rows, int64_t head_dim) {
  return (rows + 15) / 16 * 16 * ((head_dim + 15) / 16 * 16 + 2);
}

struct LatentArgs;  // attention_latent.h

struct AttentionKernels {
  // One entry per dtype of the cache. Computes task `task`.
  // A token's result depends only on its sequence's tokens, not on the tasks of the step.
  void (*paged_attention[kCacheDTypeCount])(const AttentionArgs&, int64_t task);
  // Attention over latents; `room` is the thread's memory, of latent_room_floats.
  void (*latent_attention[kCacheDTypeCount])(const LatentArgs&, int64_t task, float* room);
  void (*exp2)(float* y, const float* x, int64_t count);  // the softmax's, for its test
  // Max query rows of a tile of paged_attention[dtype] with these arguments.
  int64_t (*tile_rows)(const AttentionArgs&, int dtype);
};

}  // namespace quire
