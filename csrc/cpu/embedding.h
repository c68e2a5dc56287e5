// Rows out of embedding tables, of the ISA being compiled; T is float, bf16 or f16.
#pragma once

#include "kernels.h"

namespace quire::QUIRE_ISA {

template <class T>
void embedding(const EmbeddingArgs& a, int64_t task);

}  // namespace quire::QUIRE_ISA
