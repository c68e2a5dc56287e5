// Recurrent layers of the ISA being compiled; T is float, bf16 or f16.
#pragma once

#include "kernels.h"

namespace quire::QUIRE_ISA {

template <class T>
void causal_conv1d(const ConvArgs& a, int64_t task);
template <class T>
void gated_delta_rule(const MatrixStateArgs& a, int64_t task, float* room);
template <class T>
void mamba2_scan(const MatrixStateArgs& a, int64_t task, float* room);

}  // namespace quire::QUIRE_ISA
