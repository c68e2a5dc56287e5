// Which instruction sets this machine runs, asked of the processor and the operating system once.
#pragma once

#include "kernels.h"

namespace quire {

// A flag is true only where the operating system also saves the registers the feature needs.
// AMX additionally wants a permission from the kernel; the entry "amx" is available once it is given.
struct CpuFeatures {
  bool avx2, fma, f16c, avx_vnni;
  bool avx512f, avx512bw, avx512dq, avx512vl;
  bool avx512vbmi, avx512_vnni, avx512_bf16, avx512_fp16;
  bool amx_tile, amx_int8, amx_bf16;
  bool asimddp, i8mm, bf16;  // of ARM
};

const CpuFeatures& cpu_features();

// One kernel table that this build contains.
struct IsaEntry {
  const char* name;
  bool available;  // on this machine
  bool emulated;   // by signals (emulated_tiles.cpp): for tests, never chosen by itself
  const Kernels& (*table)();
};

// All built tables, least capable first; `count` receives how many. "portable" always runs.
const IsaEntry* isa_entries(int& count);

}  // namespace quire
