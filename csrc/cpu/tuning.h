// Sizes and thresholds that decide how fast an operation is, and never what it gives: tasks, passes
// and prefetches may be cut in any way, the sums of a result have one order. Plain data only.
//
// 0 leaves a field to the kernel, which knows a value that is good on most machines; a kernel that
// has no use for a field ignores it. `quire tune kernels` finds others for a shape and a machine.
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
  int64_t vector_rows;   // weights in groups: most rows that VNNI takes where there are tiles; -1 for none
};

struct AttentionTuning {
  int64_t thread_tasks;  // tasks a thread from which their differences matter little
  int64_t tall_rows;     // query rows from which a tile's keys and values are converted once for all
  int64_t ahead_bytes;   // from what fewer rows read of the cache to what is fetched
};

}  // namespace quire
