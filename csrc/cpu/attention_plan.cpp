#include "attention_plan.h"

#include <algorithm>

namespace quire {

namespace {

// Keys that a tile reads, times its rows; one row costs as much as a few, because keys are read once.
int64_t cost(const AttentionTile& t, int64_t window) {
  const int64_t end = t.position + t.rows;
  const int64_t keys = window > 0 ? std::min(end, window + t.rows) : end;
  return keys * (t.rows + 8);
}

}  // namespace

int64_t attention_tile_positions(int64_t heads, int64_t kv_heads) {
  const int64_t group = heads / kv_heads;
  if (group > kAttentionRows) return 0;
  int64_t positions = 1;
  while (2 * positions * group <= kAttentionRows) positions *= 2;
  return positions;
}

int64_t attention_max_tiles(int64_t tokens, int64_t num_seqs, int64_t positions) {
  return std::min(tokens, tokens / positions + 2 * num_seqs);
}

int64_t plan_attention(AttentionArgs& a, AttentionTile* tiles, int threads) {
  const int64_t positions = attention_tile_positions(a.heads, a.kv_heads);
  int64_t count = 0, chunks = 0;  // chunks: tiles of more than one row
  for (int64_t s = 0; s < a.num_seqs; ++s) {
    int64_t row = a.query_start_loc[s];
    const int64_t end_row = a.query_start_loc[s + 1];
    int64_t position = a.seq_lens[s] - (end_row - row);
    while (row < end_row) {
      const int64_t rows = std::min(positions - position % positions, end_row - row);
      tiles[count++] = {static_cast<int32_t>(s), static_cast<int32_t>(row),
                        static_cast<int32_t>(position), static_cast<int32_t>(rows)};
      chunks += rows > 1;
      row += rows;
      position += rows;
    }
  }
  std::sort(tiles, tiles + count, [&](const AttentionTile& x, const AttentionTile& y) {
    const int64_t left = cost(x, a.window), right = cost(y, a.window);
    return left != right ? left > right : x.row < y.row;
  });
  a.tiles = tiles;
  a.num_tiles = count;
  // The heads of a decoding sequence run better in one task, which fetches the next one's keys ahead
  // of time, as long as the tasks remain many enough to keep every thread busy to the end. The tiles
  // of a prompt share a head's keys, and go through them head by head.
  a.task_heads = 2 * chunks > count ? 1 : a.kv_heads;
  while (a.task_heads > 1 && count * (a.kv_heads / a.task_heads) < 8 * threads) a.task_heads /= 2;
  return count * ((a.kv_heads + a.task_heads - 1) / a.task_heads);
}

}  // namespace quire
