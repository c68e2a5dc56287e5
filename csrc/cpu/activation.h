// Activations of the ISA being compiled; T is float, bf16 or f16.
#pragma once

#include "kernels.h"

namespace quire::QUIRE_ISA {

template <class T>
void silu_mul(const UnaryArgs& a, int64_t task);
template <class T>
void gelu_tanh_mul(const UnaryArgs& a, int64_t task);
template <class T>
void gelu_mul(const UnaryArgs& a, int64_t task);
template <class T>
void gelu(const UnaryArgs& a, int64_t task);
template <class T>
void gelu_tanh(const UnaryArgs& a, int64_t task);
template <class T>
void relu(const UnaryArgs& a, int64_t task);
template <class T>
void scale(const UnaryArgs& a, int64_t task);
template <class T>
void softcap(const UnaryArgs& a, int64_t task);
template <class T>
void add_rows(const AddArgs& a, int64_t task);

}  // namespace quire::QUIRE_ISA
