// Cuts a step's attention into tiles of query rows. Baseline code; shared by all ISAs.
#pragma once

#include "attention.h"

namespace quire {

// Query rows in a tile: a power of two such that positions * (heads a kv head) is at most
// kAttentionRows, hence a divisor of kAttentionKeys. Zero where a group does not fit.
int64_t attention_tile_positions(int64_t heads, int64_t kv_heads);

// Most tiles that a step of `tokens` rows and `num_seqs` sequences can have.
int64_t attention_max_tiles(int64_t tokens, int64_t num_seqs, int64_t positions);

// Fills tiles[] from a.query_start_loc and a.seq_lens, the dearest first, and sets a.tiles,
// a.num_tiles and a.task_heads; returns the number of tasks. A tile begins at a multiple of
// `positions` in its sequence, or at the sequence's first new token.
int64_t plan_attention(AttentionArgs& a, AttentionTile* tiles, int threads);

}  // namespace quire
