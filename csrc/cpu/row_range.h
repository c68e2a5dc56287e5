// The rows of one task, and their addresses.
#pragma once

#include <stddef.h>

#include "kernels.h"

namespace quire::QUIRE_ISA {
namespace {

struct RowRange {
  int64_t begin, end;

  RowRange(int64_t rows, int64_t task_rows, int64_t task)
      : begin(task * task_rows),
        end(begin + task_rows < rows ? begin + task_rows : rows) {}
};

template <class T>
inline T* row_at(void* base, int64_t row, int64_t stride) {
  return static_cast<T*>(base) + row * stride;
}
template <class T>
inline const T* row_at(const void* base, int64_t row, int64_t stride) {
  return static_cast<const T*>(base) + row * stride;
}

template <class T>
inline void copy(T* y, const T* x, int64_t n) {
  if (y != x && n > 0) __builtin_memcpy(y, x, static_cast<size_t>(n) * sizeof(T));
}

}  // namespace
}  // namespace quire::QUIRE_ISA
