// Bindings of what only some rows go through: low-rank adapters and mixtures of experts. Addresses,
// sizes and strides are the caller's to check; the GIL is released.
#include "bind.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "cpu/moe.h"
#include "submit.h"

namespace nb = nanobind;

namespace quire {

namespace {

void refuse_recording(const Pool& pool) {
  if (pool.recording != nullptr) throw std::invalid_argument("plans cannot record this operation");
}

// `wide`: y is float32. `ends` are of the layer's parts; `entries` is the address of LoraEntry
// [adapters, parts].
void lora_add(const Kernels& kernels, Pool& pool, int dtype, bool wide, uintptr_t y,
              int64_t y_stride, uintptr_t x, int64_t x_stride, uintptr_t entries, int64_t adapters,
              const std::vector<int64_t>& ends, uintptr_t adapter, int64_t rows, int64_t k) {
  const DType type = dtype_of(dtype);
  const auto parts = static_cast<int64_t>(ends.size());
  if (parts < 1 || parts > kLoraParts) throw std::invalid_argument("too many parts, or none");
  LoraArgs args = {pointer(y), pointer(x), pointer<const LoraEntry>(entries),
                   pointer<const int64_t>(adapter), nullptr, rows, k, ends.back(), 0,
                   adapters, parts, {}, y_stride, x_stride};
  std::copy(ends.begin(), ends.end(), args.ends);
  const auto expand = wide ? kernels.lora.expand_wide[type] : kernels.lora.expand[type];
  submit(pool, LoraOp{kernels.lora.shrink[type], expand, args, type, wide ? kFloat32 : type});
}

Moe moe_of(const std::vector<const PackedWeight*>& gate_up,
           const std::vector<const PackedWeight*>& down, int dtype, int64_t rows, int64_t top_k) {
  return {nullptr, nullptr, dtype_of(dtype), rows, top_k, nullptr, nullptr, gate_up, down, nullptr};
}

int64_t bytes_for_moe(const std::vector<const PackedWeight*>& gate_up,
                      const std::vector<const PackedWeight*>& down, int dtype, int64_t rows,
                      int64_t top_k) {
  return moe_bytes(moe_of(gate_up, down, dtype, rows, top_k));
}

void moe(const Kernels& kernels, Pool& pool, const std::vector<const PackedWeight*>& gate_up,
         const std::vector<const PackedWeight*>& down, int dtype, uintptr_t y, uintptr_t x,
         uintptr_t experts, uintptr_t weights, int64_t rows, int64_t top_k, uintptr_t memory) {
  refuse_recording(pool);
  Moe args = moe_of(gate_up, down, dtype, rows, top_k);
  args.y = pointer(y);
  args.x = pointer(x);
  args.experts = pointer<const int64_t>(experts);
  args.weights = pointer<const float>(weights);
  args.memory = pointer(memory);
  const nb::gil_scoped_release unlocked;
  run_moe(kernels, pool, args);
}

}  // namespace

void bind_experts(nb::module_& m) {
  m.def("lora_add", &lora_add);
  m.def("moe_bytes", &bytes_for_moe);
  m.def("moe", &moe);
}

}  // namespace quire
