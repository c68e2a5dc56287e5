// Splits rows into tasks for the pool. Baseline code, called once per op.
#pragma once

#include <stdint.h>

namespace quire {

// Rows of one task, of an operation that moves `row_bytes` a row: all of them where the whole
// moves less than a thread takes to wake up, else as few as keep a task worth claiming.
int64_t rows_a_task(int64_t rows, int64_t row_bytes);

// Tasks of `rows` rows.
int64_t row_tasks(int64_t rows, int64_t task_rows);

}  // namespace quire
