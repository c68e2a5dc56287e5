// The dot instruction of AVX-512 BF16.
#pragma once

#include "kernels.h"

#include <immintrin.h>

namespace quire::QUIRE_ISA {
namespace {

// sum += pairs of W · the pair of columns at x, which the instruction reads itself: a compiler reads
// it once for both tiles, and puts sums on the stack instead.
inline void add_products(__m512& sum, __m512i pairs, const bf16* x) {
  struct Pair {
    bf16 x[2];
  };
  __asm__("vdpbf16ps %2%{1to16%}, %1, %0"
          : "+v"(sum)
          : "v"(pairs), "m"(*reinterpret_cast<const Pair*>(x)));
}

// The same with x in a vector. In assembly, for left to the compiler sums move between registers.
inline void add_products(__m512& sum, __m512i pairs, __m512i x) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(pairs), "v"(x));
}

}  // namespace
}  // namespace quire::QUIRE_ISA
