#pragma once

#include <nanobind/nanobind.h>

namespace quire {

void bind_experts(nanobind::module_& m);

}  // namespace quire
