#pragma once

#include <nanobind/nanobind.h>

namespace quire {

void bind_sample(nanobind::module_& m);

}  // namespace quire
