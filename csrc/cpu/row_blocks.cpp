#include "row_blocks.h"

namespace quire {

namespace {
// About 10 and 2 microseconds of one core's work.
constexpr int64_t kSerialBytes = 128 << 10;
constexpr int64_t kTaskBytes = 32 << 10;
}  // namespace

int64_t rows_a_task(int64_t rows, int64_t row_bytes) {
  if (rows * row_bytes < kSerialBytes) return rows < 1 ? 1 : rows;
  return row_bytes < kTaskBytes ? (kTaskBytes + row_bytes - 1) / row_bytes : 1;
}

int64_t row_tasks(int64_t rows, int64_t task_rows) { return (rows + task_rows - 1) / task_rows; }

}  // namespace quire
