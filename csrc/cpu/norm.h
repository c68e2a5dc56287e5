// RMSNorm kernels of the ISA being compiled; T is float, bf16 or f16.
#pragma once

#include "kernels.h"

namespace quire::QUIRE_ISA {

template <class T>
void rms_norm(const RmsNormArgs& a, int64_t task);

template <class T>
void add_rms_norm(const AddRmsNormArgs& a, int64_t task);

}  // namespace quire::QUIRE_ISA
