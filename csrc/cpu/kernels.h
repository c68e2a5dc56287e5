// The kernel table: what every instruction-set build of csrc/cpu offers.
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
#include "sample.h"

namespace quire {

// y[r] = weight * (x[r] / rms(x[r])), rounded to the weight's dtype before the product with it, and to
// the table entry's after it. A wide weight is of float: then the first rounding is none.
// Every tensor has the table entry's dtype; strides are in elements and count from row to row.
// y may be x itself; any other overlap is an error.
struct RmsNormArgs {
  void* y;             // [rows, cols]
  const void* x;       // [rows, cols]
  const void* weight;  // [cols]
  int64_t rows, cols;
  int64_t y_stride, x_stride;
  float eps;
  bool wide_weight;
  int64_t task_rows;  // see fused.h
};

// residual_out[r] = x[r] + residual[r], rounded to the dtype; y[r] = rms_norm(residual_out[r]).
// residual_out may be residual or x, and y may be the other one; any other overlap is an error.
struct AddRmsNormArgs {
  void* y;               // [rows, cols]
  void* residual_out;    // [rows, cols]
  const void* x;         // [rows, cols]
  const void* residual;  // [rows, cols]
  const void* weight;    // [cols]
  int64_t rows, cols;
  int64_t y_stride, residual_out_stride, x_stride, residual_stride;
  float eps;
  bool wide_weight;
  int64_t task_rows;  // see fused.h
};

// One table an ISA. A row's result depends on that row alone, never on `rows` or its position.
struct Kernels {
  const char* isa;
  void (*rms_norm[kDTypeCount])(const RmsNormArgs&);
  void (*add_rms_norm[kDTypeCount])(const AddRmsNormArgs&);
  FusedKernels fused;
  const Gemm* gemm[kWeightKindCount];
  // Rounds w[n], n <= 128, to 4 bits: w ~ scale * q + offset (quantize_u4.h).
  void (*quantize_u4)(const float* w, int64_t n, uint8_t* q, float* scale, float* offset);
  AttentionKernels attention;
  const SampleKernels* sample;
  LoraKernels lora;
  void (*mix[kDTypeCount])(const MixArgs&, int64_t row);
};

// Defined once for every ISA that is built, by table.cpp.
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
namespace amx_emulated {  // those of amx, their tile instructions in software: for tests
const Kernels& table();
}

}  // namespace quire
