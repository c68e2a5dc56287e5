#pragma once

#include <nanobind/nanobind.h>

namespace quire {

void bind_blocks(nanobind::module_& m);

}  // namespace quire
