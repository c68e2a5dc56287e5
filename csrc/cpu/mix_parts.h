// A weighted sum of rows, of the ISA being compiled; T is float, bf16 or f16.
#pragma once

#include "kernels.h"

namespace quire::QUIRE_ISA {

template <class T>
void mix_rows(const MixArgs& a, int64_t row);

}  // namespace quire::QUIRE_ISA
