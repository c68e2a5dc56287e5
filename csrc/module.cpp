// quire._native: Python's view of the kernel tables. Binding only; the work is in cpu/.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "bind.h"
#include "cpu/isa.h"

namespace nb = nanobind;
using namespace quire;

namespace {

nb::list runnable(bool emulated) {
  nb::list names;
  int count = 0;
  const IsaEntry* entries = isa_entries(count);
  for (int i = 0; i < count; ++i) {
    if (entries[i].available && entries[i].emulated == emulated) names.append(entries[i].name);
  }
  return names;
}

nb::list detect() { return runnable(false); }

nb::list emulated() { return runnable(true); }

nb::dict features() {
  const CpuFeatures& f = cpu_features();
  nb::dict flags;
  flags["avx2"] = f.avx2;
  flags["fma"] = f.fma;
  flags["f16c"] = f.f16c;
  flags["avx_vnni"] = f.avx_vnni;
  flags["avx512f"] = f.avx512f;
  flags["avx512bw"] = f.avx512bw;
  flags["avx512dq"] = f.avx512dq;
  flags["avx512vl"] = f.avx512vl;
  flags["avx512vbmi"] = f.avx512vbmi;
  flags["avx512_vnni"] = f.avx512_vnni;
  flags["avx512_bf16"] = f.avx512_bf16;
  flags["avx512_fp16"] = f.avx512_fp16;
  flags["amx_tile"] = f.amx_tile;
  flags["amx_int8"] = f.amx_int8;
  flags["amx_bf16"] = f.amx_bf16;
  flags["asimddp"] = f.asimddp;
  flags["i8mm"] = f.i8mm;
  flags["bf16"] = f.bf16;
  return flags;
}

const Kernels& table(const std::string& name) {
  int count = 0;
  const IsaEntry* entries = isa_entries(count);
  std::string runnable;
  bool known = false;
  for (int i = 0; i < count; ++i) {
    if (name == entries[i].name) {
      if (entries[i].available) return entries[i].table();
      known = true;
    }
    if (entries[i].available && !entries[i].emulated) {
      runnable += (runnable.empty() ? "" : ", ") + std::string(entries[i].name);
    }
  }
  throw std::invalid_argument((known ? "this machine lacks CPU ISA '" : "no kernels for CPU ISA '") +
                              name + "'; available here: " + runnable);
}

}  // namespace

NB_MODULE(_native, m) {
  // A core process ends while its threads hold a model. Users need no list of what was not freed.
  nb::set_leak_warnings(false);
  m.attr("FLOAT32") = static_cast<int>(kFloat32);
  m.attr("BFLOAT16") = static_cast<int>(kBFloat16);
  m.attr("FLOAT16") = static_cast<int>(kFloat16);
  m.attr("INT8") = static_cast<int>(kInt8);
  m.attr("INT4") = static_cast<int>(kInt4);
  m.attr("FLOAT8_E4M3") = static_cast<int>(kFloat8E4M3);
  m.attr("FLOAT8_E5M2") = static_cast<int>(kFloat8E5M2);

  nb::class_<Kernels>(m, "Kernels")
      .def_prop_ro("isa", [](const Kernels& kernels) { return kernels.isa; });

  nb::class_<Matrix>(m, "Matrix")
      .def("__init__", [](Matrix* self, uintptr_t at, int64_t rows, int64_t cols, int64_t stride,
                          int dtype) {
        new (self) Matrix{pointer(at), rows, cols, stride, dtype_of(dtype)};
      });
  nb::class_<Indices>(m, "Indices").def("__init__", [](Indices* self, uintptr_t at, int64_t size) {
    new (self) Indices{pointer<const int64_t>(at), size};
  });

  bind_gemm(m);
  bind_images(m);
  bind_blocks(m);
  bind_sample(m);
  bind_spec(m);
  bind_states(m);
  bind_text(m);
  bind_attention_op(m);
  bind_element_ops(m);
  bind_head_linear_op(m);
  bind_latent_op(m);
  bind_linear_op(m);
  bind_moe_op(m);
  bind_norm_ops(m);
  bind_rank_ops(m);
  bind_recurrent_op(m);
  bind_rope_op(m);
  bind_route_op(m);
  bind_plan(m);

  m.def("detect", &detect);
  m.def("emulated", &emulated);
  m.def("features", &features);
  m.def("table", &table, nb::rv_policy::reference);
}
