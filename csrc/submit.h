// How a binding hands an op over.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

#include "cpu/plan.h"

namespace quire {

// Runs the op, its indices checked, without the GIL; or records it, if the pool's ops are.
template <class SomeOp>
void submit(Pool& pool, SomeOp op) {
  if (pool.recording != nullptr) {
    return pool.recording->append(std::make_unique<SomeOp>(std::move(op)));
  }
  const nanobind::gil_scoped_release unlocked;
  for (const IndexCheck& check : op.indices()) check_indices(check, op.rows());
  op.run(pool);
}

// Binds an op: (kernels, pool, what the rest of its constructor takes).
template <class SomeOp, class... Args>
void def_op(nanobind::module_& m, const char* name) {
  m.def(name, [](const Kernels& kernels, Pool& pool, Args... args) {
    submit(pool, SomeOp(kernels, args...));
  });
}

}  // namespace quire
