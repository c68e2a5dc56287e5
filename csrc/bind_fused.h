#pragma once

#include <nanobind/nanobind.h>

namespace quire {

void bind_fused(nanobind::module_& m);

}  // namespace quire
