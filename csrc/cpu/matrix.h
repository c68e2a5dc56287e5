// Views of tensors, as bindings take them: what an op's numbers and strides are checked against.
#pragma once

#include <stdint.h>

#include <stdexcept>
#include <string>

#include "dtype.h"

namespace quire {

// Rows `stride` elements apart, each contiguous; a vector is one row.
struct Matrix {
  void* at;
  int64_t rows, cols, stride;
  DType dtype;

  int64_t row_bytes() const { return cols * item_bytes(dtype); }
};

// Contiguous.
struct Indices {
  const int64_t* at;
  int64_t size;
};

inline std::string describe(const Matrix& m) {
  static constexpr const char* kNames[] = {"float32", "bfloat16", "float16"};
  return std::string(kNames[m.dtype]) + " [" + std::to_string(m.rows) + ", " +
         std::to_string(m.cols) + "]";
}
inline std::string describe(const Indices& i) { return "int64 [" + std::to_string(i.size) + "]"; }

// Throws std::invalid_argument, which describes both, unless `name` fits `other`.
template <class View>
void expect(bool fits, const char* name, const View& view, const char* other, const Matrix& to) {
  if (fits) return;
  throw std::invalid_argument(std::string(name) + " is " + describe(view) + ", but " + other +
                              " is " + describe(to));
}

inline void expect_same(const char* name, const Matrix& m, const char* other, const Matrix& to) {
  expect(m.rows == to.rows && m.cols == to.cols && m.dtype == to.dtype, name, m, other, to);
}

// A contiguous vector of `cols`, of the dtype of `to`, or of float where it may be wide. Returns
// whether it is wider than `to`.
inline bool expect_vector(const char* name, const Matrix& m, int64_t cols, const Matrix& to,
                          bool may_be_wide = false) {
  const bool wide = may_be_wide && m.dtype == kFloat32 && to.dtype != kFloat32;
  expect(m.rows == 1 && m.cols == cols && (wide || m.dtype == to.dtype), name, m, "x", to);
  return wide;
}

}  // namespace quire
