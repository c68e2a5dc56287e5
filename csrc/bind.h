// The parts of the module, a file each, and what they share. What an address stands for is the
// caller's to check: a tensor's dtype, sizes and strides.
#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>

#include "cpu/dtype.h"

namespace quire {

void bind_attention(nanobind::module_& m);
void bind_blocks(nanobind::module_& m);
void bind_experts(nanobind::module_& m);
void bind_fused(nanobind::module_& m);
void bind_gemm(nanobind::module_& m);
void bind_plan(nanobind::module_& m);
void bind_ranks(nanobind::module_& m);
void bind_sample(nanobind::module_& m);

template <class T = void>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

inline DType dtype_of(int code) {
  if (code < 0 || code >= kDTypeCount) throw std::invalid_argument("unknown dtype code");
  return static_cast<DType>(code);
}

// Of a KV cache.
inline int cache_dtype_of(int code) {
  if (code < 0 || code >= kCacheDTypeCount) throw std::invalid_argument("unknown dtype code");
  return code;
}

}  // namespace quire
