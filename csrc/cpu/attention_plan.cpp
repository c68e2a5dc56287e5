#include "attention_plan.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace quire {

namespace {

constexpr int64_t kThreadTasks = 8;  // default
constexpr int64_t kRun = 8192;       // elements that heads should read together
constexpr int64_t kPartFloats = 1 << 20, kParts = 512;  // limits of split tiles per thread

// A whole task for one head, and its cost: keys times rows. One row costs as much as a few, because
// keys are read once.
struct Tile {
  AttentionTask task;
  int64_t cost;
  bool split;

  int64_t parts() const {
    return (task.end - 1) / kAttentionPartition - task.begin / kAttentionPartition + 1;
  }
};

std::vector<Tile> cut_rows(const AttentionArgs& a, int64_t positions) {
  std::vector<Tile> tiles;
  for (int64_t s = 0; s < a.num_seqs; ++s) {
    int64_t row = a.query_start_loc[s];
    const int64_t end_row = a.query_start_loc[s + 1];
    int64_t position = a.seq_lens[s] - (end_row - row);
    while (row < end_row) {
      const int64_t rows = std::min(positions - position % positions, end_row - row);
      const int64_t end = std::min(position + rows + attention_ahead(a, s), int64_t{a.seq_lens[s]});
      const int64_t begin = attention_first(a, position);
      const auto i = [](int64_t n) { return static_cast<int32_t>(n); };
      tiles.push_back({{i(s), i(row), i(position), i(rows), 0, 0, i(begin), i(end), -1, 0},
                       (end - begin) * (rows + 8), false});
      row += rows;
      position += rows;
    }
  }
  // Prompt tiles come first, and the most expensive of each kind.
  std::sort(tiles.begin(), tiles.end(), [](const Tile& x, const Tile& y) {
    if ((x.task.rows > 1) != (y.task.rows > 1)) return x.task.rows > 1;
    return x.cost != y.cost ? x.cost > y.cost : x.task.row < y.task.row;
  });
  return tiles;
}

// Returns when the last task ends if each, with this many heads, goes to the first free thread.
int64_t finish(const AttentionArgs& a, const std::vector<Tile>& tiles, int64_t heads, int threads) {
  std::vector<int64_t> free_at(static_cast<size_t>(threads), 0);
  const auto later = std::greater<int64_t>();
  int64_t last = 0;
  for (const Tile& tile : tiles) {
    for (int64_t head = 0; head < a.kv_heads; head += heads) {
      std::pop_heap(free_at.begin(), free_at.end(), later);
      free_at.back() += tile.cost * std::min(heads, a.kv_heads - head);
      last = std::max(last, free_at.back());
      std::push_heap(free_at.begin(), free_at.end(), later);
    }
  }
  return last;
}

int64_t thread_tasks(const AttentionArgs& a) {
  return a.tuning.thread_tasks > 0 ? a.tuning.thread_tasks : kThreadTasks;
}

bool are_few(const AttentionArgs& a, const std::vector<Tile>& tiles, int threads) {
  return static_cast<int64_t>(tiles.size()) * a.kv_heads <= 2 * thread_tasks(a) * threads;
}

// Minimum heads of a decoding sequence's tasks. Heads follow each other within a block, and long runs
// are read faster. But large tasks may leave a thread waiting.
int64_t least_heads(const AttentionArgs& a, const std::vector<Tile>& tiles, int threads) {
  int64_t heads = 1;
  while (heads < a.kv_heads && heads * a.block_size * a.head_dim < kRun) {
    heads = std::min(2 * heads, a.kv_heads);
  }
  if (threads == 1 || !are_few(a, tiles, threads)) return heads;
  const int64_t best = finish(a, tiles, 1, threads);
  while (heads > 1 && 24 * finish(a, tiles, heads, threads) > 25 * best) heads /= 2;
  return heads;
}

// Marks the tiles to split: those that one thread would still compute while others are idle. A gain of
// at most a twelfth does not count, because a part's first keys are not prefetched. To find out takes a
// fifth of the time of a short sequence, so it is asked only if some tile has parts.
void choose_splits(const AttentionArgs& a, int threads, AttentionSplit split, int64_t total,
                   int64_t share, std::vector<Tile>& tiles) {
  const bool always = split == AttentionSplit::kAlways;
  if (split == AttentionSplit::kNever || (threads == 1 && !always)) return;
  if (std::all_of(tiles.begin(), tiles.end(), [](const Tile& t) { return t.parts() == 1; })) return;
  if (!always && are_few(a, tiles, threads) &&
      12 * threads * finish(a, tiles, 1, threads) <= 13 * total) {
    return;
  }
  int64_t parts = kParts * threads, floats = kPartFloats * threads;
  for (Tile& tile : tiles) {
    if (tile.parts() == 1 || (!always && tile.cost <= share)) continue;
    const int64_t more = tile.parts() * a.kv_heads;
    const int64_t room = more * attention_partial_floats(tile.task.rows * (a.heads / a.kv_heads),
                                                         a.head_dim);
    tile.split = more <= parts && room <= floats;
    if (!tile.split) continue;
    parts -= more;
    floats -= room;
  }
}

// Writes tasks, and the merges of those that are parts.
struct Writer {
  const AttentionArgs& a;
  int64_t share;  // cost of a task
  AttentionTask* tasks;
  AttentionMerge* merges;
  int64_t count = 0, num_merges = 0, floats = 0;

  void write(const Tile& tile, int64_t head, int64_t end_head) {
    AttentionTask task = tile.task;
    task.head = static_cast<int32_t>(head);
    task.end_head = static_cast<int32_t>(end_head);
    if (!tile.split) {
      tasks[count++] = task;
      return;
    }
    const int32_t parts = static_cast<int32_t>(tile.parts());
    const int64_t part_cost = kAttentionPartition * (task.rows + 8);
    const int32_t parts_a_task = static_cast<int32_t>(std::clamp<int64_t>(share / part_cost, 1, parts));
    task.merge = static_cast<int32_t>(num_merges);
    for (; head < end_head; ++head) {
      merges[num_merges++] = {floats, parts, parts};
      floats += parts * attention_partial_floats(task.rows * (a.heads / a.kv_heads), a.head_dim);
    }
    for (; task.part < parts; task.part += parts_a_task) {
      const int32_t end_part = task.begin / kAttentionPartition + parts_a_task;
      task.end = std::min(end_part * kAttentionPartition, tile.task.end);
      tasks[count++] = task;
      task.begin = task.end;
    }
  }
};

// Maximum tiles of a step.
int64_t most_tiles(const AttentionArgs& a, int64_t tokens, int threads) {
  const int64_t positions = attention_tile_positions(a, tokens, threads);
  return std::min(tokens, tokens / positions + 2 * a.num_seqs);
}

// Offsets of the regions of `memory`.
struct Layout {
  int64_t merges, partials, bytes;

  Layout(const AttentionArgs& a, int64_t tokens, int threads) {
    const auto aligned = [](int64_t bytes_) { return (bytes_ + 63) / 64 * 64; };
    const int64_t tasks = most_tiles(a, tokens, threads) * a.kv_heads + kParts * threads;
    merges = aligned(tasks * static_cast<int64_t>(sizeof(AttentionTask)));
    partials = merges +
               aligned(kParts * threads * static_cast<int64_t>(sizeof(AttentionMerge)));
    bytes = partials + kPartFloats * threads * static_cast<int64_t>(sizeof(float));
  }
};

}  // namespace

int64_t attention_tile_positions(const AttentionArgs& a, int64_t tokens, int threads) {
  const int64_t group = a.heads / a.kv_heads, tasks = thread_tasks(a) * threads;
  int64_t positions = 1;
  while (2 * positions * group <= a.tile_rows && 2 * positions <= kAttentionKeys) {
    const bool small = 2 * positions * group <= kAttentionRows;
    if (!small && tokens * a.kv_heads < tasks * 2 * positions) break;
    positions *= 2;
  }
  return positions;
}

int64_t attention_plan_bytes(const AttentionArgs& a, int64_t tokens, int threads) {
  return Layout(a, tokens, threads).bytes;
}

int64_t plan_attention(AttentionArgs& a, int64_t tokens, void* memory, int threads,
                       AttentionSplit split) {
  std::vector<Tile> tiles = cut_rows(a, attention_tile_positions(a, tokens, threads));
  int64_t total = 0;
  for (const Tile& tile : tiles) total += tile.cost * a.kv_heads;
  const int64_t share = total / (thread_tasks(a) * threads);
  choose_splits(a, threads, split, total, share, tiles);

  const Layout layout(a, tokens, threads);
  uint8_t* const start = static_cast<uint8_t*>(memory);
  Writer to{a, share, reinterpret_cast<AttentionTask*>(start),
            reinterpret_cast<AttentionMerge*>(start + layout.merges)};
  // Prompt tiles share a head's keys and go head by head. The heads of a decoding sequence run better in
  // one task, which prefetches the next head's keys, if no task is so large that other threads wait.
  const int64_t chunks = std::count_if(tiles.begin(), tiles.end(),
                                       [](const Tile& tile) { return tile.task.rows > 1; });
  for (int64_t head = 0; head < a.kv_heads; ++head) {
    for (int64_t i = 0; i < chunks; ++i) to.write(tiles[static_cast<size_t>(i)], head, head + 1);
  }
  const int64_t least = least_heads(a, tiles, threads);
  for (size_t i = static_cast<size_t>(chunks); i < tiles.size(); ++i) {
    const Tile& tile = tiles[i];
    const int64_t heads = tile.split     ? 1
                          : threads == 1 ? a.kv_heads
                                         : std::clamp(share / tile.cost, least, a.kv_heads);
    for (int64_t head = 0; head < a.kv_heads; head += heads) {
      to.write(tile, head, std::min(head + heads, a.kv_heads));
    }
  }
  a.tasks = to.tasks;
  a.merges = to.merges;
  a.partials = reinterpret_cast<float*>(start + layout.partials);
  return to.count;
}

}  // namespace quire
