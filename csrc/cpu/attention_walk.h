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

// Saves the partial result of part `index`.
template <class W>
void save_part(const AttentionArgs& a, const AttentionMerge& merge, int64_t index, W& work,
               const typename W::State& part) {
  const int64_t size = attention_partial_floats(work.rows(), a.head_dim);
  work.save(part, a.partials + merge.at + index * size);
}

// Counts `done` parts as finished. Merges all parts into `total` if they were the last.
template <class W>
bool merge_parts(const AttentionArgs& a, AttentionMerge& merge, int done, W& work,
                 typename W::State& total, typename W::State& part) {
  if (__atomic_sub_fetch(&merge.left, done, __ATOMIC_ACQ_REL) != 0) return false;
  const int64_t size = attention_partial_floats(work.rows(), a.head_dim);
  const float* partial = a.partials + merge.at;
  work.restore(partial, total);
  for (int i = 1; i < merge.parts; ++i) {
    work.restore(partial += size, part);
    work.merge(total, part);
  }
  return true;
}

// W, the work on a tile of rows, has a State with the sums over some keys, and
//   heads()                                 max heads that it computes together
//   lead()                                  prefetch distance (Ahead)
//   load(head, heads)  store(head, state)   queries and results of these heads
//   rows()                                  rows of these heads
//   clear(state)  merge(total, part)
//   attend(keys, ahead, start, state)       adds the key tile that begins at `start`
//   save(state, floats)  restore(floats, state)
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
    AttentionMerge* const merge = whole ? nullptr : a.merges + task.merge + (head - task.head);
    typename W::State *part = &states[0], *total = nullptr;
    int parts = 0;
    work.clear(*part);
    for (int64_t start = first; start < end; start += kKeys) {
      if (start % kAttentionPartition == 0 && start > begin) {
        if (!whole) {
          save_part(a, *merge, task.part + parts++, work, *part);
        } else if (total == nullptr) {
          total = part;
          part = &states[1];
        } else {
          work.merge(*total, *part);
        }
        work.clear(*part);
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
    if (total != nullptr) work.merge(*total, *part);
    if (!whole) {
      save_part(a, *merge, task.part + parts++, work, *part);
      if (!merge_parts(a, *merge, parts, work, states[0], states[1])) continue;
    }
    work.store(head, states[0]);
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
