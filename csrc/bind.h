// The parts of the module, a file each, and what they share. What an address stands for is the
// caller's to check: a tensor's dtype, sizes and strides.
#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>

#include "cpu/matrix.h"

namespace quire {

void bind_blocks(nanobind::module_& m);
void bind_gemm(nanobind::module_& m);
void bind_images(nanobind::module_& m);
void bind_plan(nanobind::module_& m);
void bind_sample(nanobind::module_& m);
void bind_spec(nanobind::module_& m);
void bind_states(nanobind::module_& m);
void bind_text(nanobind::module_& m);

// Ops: functions of (kernels, pool, results, operands, parameters), which release the GIL.
void bind_attention_op(nanobind::module_& m);
void bind_element_ops(nanobind::module_& m);
void bind_head_linear_op(nanobind::module_& m);
void bind_latent_op(nanobind::module_& m);
void bind_linear_op(nanobind::module_& m);
void bind_moe_op(nanobind::module_& m);
void bind_norm_ops(nanobind::module_& m);
void bind_rank_ops(nanobind::module_& m);
void bind_recurrent_op(nanobind::module_& m);
void bind_rope_op(nanobind::module_& m);
void bind_route_op(nanobind::module_& m);

template <class T = void>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

inline DType dtype_of(int code) {
  if (code < 0 || code >= kDTypeCount) throw std::invalid_argument("unknown dtype code");
  return static_cast<DType>(code);
}

}  // namespace quire
