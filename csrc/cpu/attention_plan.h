// Cuts a step's attention into tasks: tiles of query rows, some heads, and where a few long sequences
// would leave threads idle, partitions of their keys. Baseline code; shared by all ISAs.
#pragma once

#include "attention.h"

namespace quire {

// Whether tiles are cut into parts. Results are the same; the others are for tests and benchmarks.
enum class AttentionSplit : int { kAutomatic, kNever, kAlways };

// Query rows in a tile: a power of two such that positions * (heads a kv head) is at most
// kAttentionRows, hence a divisor of kAttentionKeys; one where a single group is more.
int64_t attention_tile_positions(int64_t heads, int64_t kv_heads);

// Bytes that `plan_attention` needs for a step of `tokens` rows; most of them it may never touch.
int64_t attention_plan_bytes(const AttentionArgs& a, int64_t tokens, int threads);

// Lays out a.tasks, a.merges and room for a.partials in `memory`, from a.query_start_loc and
// a.seq_lens; returns the number of tasks, which are to be claimed in their order. A tile begins at
// a multiple of its most rows in its sequence, or at the sequence's first new token.
int64_t plan_attention(AttentionArgs& a, int64_t tokens, void* memory, int threads,
                       AttentionSplit split);

}  // namespace quire
