// GEMM of groups of codes of 5 to 8 bits.
#include "gemm_grouped.h"

namespace quire::QUIRE_ISA {

const Gemm kGemmU5 = kGrouped<Codes<5>>;
const Gemm kGemmU6 = kGrouped<Codes<6>>;
const Gemm kGemmU8 = kGrouped<Codes<8>>;

}  // namespace quire::QUIRE_ISA
