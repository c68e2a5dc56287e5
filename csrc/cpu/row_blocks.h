// Splits rows into tasks for the pool. Baseline code, called once per op.
#pragma once

#include <stdint.h>

namespace quire {

// Rows per task for an operation that moves `row_bytes` per row. All rows if waking another thread would
// take longer than the work, else as few as make a task worth claiming.
int64_t rows_a_task(int64_t rows, int64_t row_bytes);

// The number of tasks of `task_rows` rows.
int64_t row_tasks(int64_t rows, int64_t task_rows);

}  // namespace quire
