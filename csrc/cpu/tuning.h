// Sizes and thresholds of tasks, passes and prefetches. They change the speed, never the result, because
// the order of sums is fixed. Plain data only.
//
// 0 selects the kernel's own value, which is good on most machines. Kernels ignore fields that they do
// not use. `quire tune kernels` searches values for a shape and a machine.
#pragma once

#include <stdint.h>

namespace quire {

constexpr int64_t kMostThreadTasks = 1024;

struct GemmTuning {
  int64_t pass_rows;     // of x that pass over W together; at most as many as fit into registers
  int64_t chunk_bytes;   // of x a task
  int64_t group_bytes;   // of W a task
  int64_t thread_tasks;  // tasks a thread that W is cut into at least, if it is large enough
  int64_t ahead_bytes;   // from the line of W that is read to the one that is fetched; -1 for none
  int64_t vector_rows;   // int8, weights in groups: most rows that VNNI takes where there are tiles; -1 for none
};

struct AttentionTuning {
  int64_t thread_tasks;  // tasks a thread from which their differences matter little
  int64_t tall_rows;     // query rows from which a tile's keys and values are converted once for all
  int64_t ahead_bytes;   // from what fewer rows read of the cache to what is fetched
};

}  // namespace quire
