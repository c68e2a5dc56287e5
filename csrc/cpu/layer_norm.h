// LayerNorm kernels of the ISA being compiled; T is float, bf16 or f16.
#pragma once

#include "kernels.h"

namespace quire::QUIRE_ISA {

template <class T>
void layer_norm(const LayerNormArgs& a, int64_t task);

template <class T>
void add_layer_norm(const AddLayerNormArgs& a, int64_t task);

}  // namespace quire::QUIRE_ISA
