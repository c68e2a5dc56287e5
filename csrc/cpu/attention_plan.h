// Splits a step's attention into tasks: tiles of query rows, heads, and partitions of keys if a few
// long sequences would leave threads idle. Baseline code; shared by all ISAs.
#pragma once

#include "attention.h"

namespace quire {

// Whether tiles are split into parts. Results are equal; the other values are for tests and benchmarks.
enum class AttentionSplit : int { kAutomatic, kNever, kAlways };

// Positions in a tile of a step of `tokens` rows: a power of two that divides kAttentionKeys, such that
// positions * (heads per kv head) is at most a.tile_rows; one if a single group is larger. If large tiles
// were too few tasks for the threads, they are smaller, down to kAttentionRows.
int64_t attention_tile_positions(const AttentionArgs& a, int64_t tokens, int threads);

// Bytes that `plan_attention` needs for a step of `tokens` rows; most may stay untouched.
int64_t attention_plan_bytes(const AttentionArgs& a, int64_t tokens, int threads);

// Places a.tasks, a.merges and a.partials in `memory`, from a.query_start_loc and a.seq_lens. Returns
// the number of tasks, which threads must claim in order. A tile begins at a multiple of the tile size
// in its sequence, or at the sequence's first new token.
int64_t plan_attention(AttentionArgs& a, int64_t tokens, void* memory, int threads,
                       AttentionSplit split);

}  // namespace quire
