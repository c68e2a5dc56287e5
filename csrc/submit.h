// How a binding hands an op over.
#pragma once

#include <nanobind/nanobind.h>

#include "cpu/plan.h"

namespace quire {

// Runs the op, its indices checked, without the GIL; or records it, if the pool's ops are.
inline void submit(Pool& pool, Op op) {
  if (pool.recording != nullptr) return pool.recording->append(op);
  const nanobind::gil_scoped_release unlocked;
  each_index(op, [&](const IndexCheck& check) { check_indices(check, rows_of(op)); });
  run(pool, op);
}

}  // namespace quire
