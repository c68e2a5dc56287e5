#pragma once

#include <nanobind/nanobind.h>

namespace quire {

void bind_gemm(nanobind::module_& m);

}  // namespace quire
