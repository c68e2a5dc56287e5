// The loop of a task over its heads and key tiles, for vector and tile kernels.
//
//             keys  0 .. 127 | 128 .. 255 | ... | 1024 ..     tiles of kAttentionKeys
//   rows      ------> top, sum, acc      ...    | merged into the total after kAttentionPartition
//
// A row's result depends only on its position. Tiles and partitions begin at fixed positions. A row's
// dot products and sums have one order, whatever other rows are in the task. Hidden keys have no
// effect (0 * v is added, or the tile is skipped). Partitions are merged in order, by one task or by
// several.
#pragma once

#include "attention_keys.h"

namespace quire::QUIRE_ISA {
namespace {

// Counts `done` parts as finished. If they were the last, merges all parts, of `size` floats each, into
// `total`.
template <class Tile, class State>
QUIRE_ONCE bool merge_parts(const float* partial, int64_t size, AttentionMerge& parts, int done,
                            const Tile& tile, State& total, State& part) {
  if (__atomic_sub_fetch(&parts.left, done, __ATOMIC_ACQ_REL) != 0) return false;
  restore(tile, partial, total);
  for (int i = 1; i < parts.parts; ++i) {
    restore(tile, partial += size, part);
    merge(tile, total, part);
  }
  return true;
}

// W, the work on a tile of rows, has a State with the sums over some keys, and
//   heads()                                 max heads that it computes together
//   lead()                                  prefetch distance (Ahead)
//   load(head, heads)  store(head, state)   queries and results of these heads
//   rows()                                  rows of these heads
//   attend(keys, ahead, start, state)       adds the key tile that begins at `start`
//   tile                                    the argument of these functions:
//     clear(tile, state)  merge(tile, total, part)
//     save(tile, state, floats)  restore(tile, floats, state)
template <class T, class W>
void walk(const AttentionArgs& a, const AttentionTask& task, W& work) {
  typename W::State states[2];
  const int32_t* table = a.block_tables + task.seq * a.block_table_stride;
  const int64_t begin = task.begin, end = task.end, first = begin / kKeys * kKeys;
  // As many heads at once as are left.
  const auto heads_from = [&](int64_t head) {
    const int64_t left = task.end_head - head;
    return static_cast<int>(left < work.heads() ? left : work.heads());
  };
  Keys<T> keys = find_keys<T>(a, table, task.head, first, begin, end);
  int heads = heads_from(task.head);
  Ahead(keys, heads, work.lead()).fetch_rest();
  const bool whole = task.merge < 0;
  for (int64_t head = task.head; head < task.end_head; head += heads) {
    heads = heads_from(head);
    work.load(head, heads);
    AttentionMerge* const parts = whole ? nullptr : a.merges + task.merge + (head - task.head);
    float* const partials = whole ? nullptr : a.partials + parts->at;
    const int64_t size = attention_partial_floats(work.rows(), a.head_dim);
    typename W::State *part = &states[0], *total = nullptr;
    int done = 0;
    clear(work.tile, *part);
    for (int64_t start = first; start < end; start += kKeys) {
      if (start % kAttentionPartition == 0 && start > begin) {
        if (!whole) {
          save(work.tile, *part, partials + (task.part + done++) * size);
        } else if (total == nullptr) {
          total = part;
          part = &states[1];
        } else {
          merge(work.tile, *total, *part);
        }
        clear(work.tile, *part);
      }
      Keys<T> next{};
      if (start + kKeys < end) {
        next = find_keys<T>(a, table, head, start + kKeys, begin, end);
      } else if (head + heads < task.end_head) {
        next = find_keys<T>(a, table, head + heads, first, begin, end);
      }
      Ahead ahead(keys, next, heads, work.lead());
      work.attend(keys, ahead, start, *part);
      ahead.fetch_rest();
      keys = next;
    }
    if (total != nullptr) merge(work.tile, *total, *part);
    if (!whole) {
      save(work.tile, *part, partials + (task.part + done++) * size);
      if (!merge_parts(partials, size, *parts, done, work.tile, states[0], states[1])) continue;
    }
    work.store(head, states[0]);
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
