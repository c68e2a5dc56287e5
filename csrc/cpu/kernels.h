// The kernel table of each instruction-set build of csrc/cpu.
//
// Only plain data lives here. This header is compiled into every ISA, so an inline function or a
// template in it would become one weak symbol that the linker may take from the wrong ISA.
#pragma once

#include <stdint.h>

#include "attention.h"
#include "dtype.h"
#include "fused.h"
#include "gemm.h"
#include "lora.h"
#include "mix.h"
#include "recurrent.h"
#include "resize.h"
#include "sample.h"

namespace quire {

// One table per ISA. A row's result depends only on that row, never on `rows` or its index.
struct Kernels {
  const char* isa;
  FusedKernels fused;
  const Gemm* gemm[kWeightKindCount];
  // Rounds w[n], n <= 128, to codes of `bits` bits: w ~ scale * q + offset (quantize_codes.h).
  void (*quantize_codes)(int bits, const float* w, int64_t n, uint8_t* q, float* scale,
                         float* offset);
  AttentionKernels attention;
  const SampleKernels* sample;
  LoraKernels lora;
  void (*mix[kDTypeCount])(const MixArgs&, int64_t row);
  RecurrentKernels recurrent;
  const ResizeKernels* resize;
};

// Defined by table.cpp, and for AMX by table_amx.cpp.
namespace portable {
const Kernels& table();
}
namespace avx2 {
const Kernels& table();
}
namespace avx512 {
const Kernels& table();
}
namespace avx512_vnni {  // + VNNI, BF16, VBMI
const Kernels& table();
}
namespace amx {  // + tiles of bf16 and int8
const Kernels& table();
}
namespace neon {
const Kernels& table();
}
namespace dotprod {  // + products of int8
const Kernels& table();
}
namespace i8mm {  // + products of bf16, and of pairs of rows
const Kernels& table();
}
namespace amx_emulated {  // amx with tile instructions in software, for tests
const Kernels& table();
}

}  // namespace quire
