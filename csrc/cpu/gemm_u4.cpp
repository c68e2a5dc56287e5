// GEMM of groups of codes of 2 to 4 bits.
#include "gemm_grouped.h"

namespace quire::QUIRE_ISA {

const Gemm kGemmU2 = kGrouped<Codes<2>>;
const Gemm kGemmU3 = kGrouped<Codes<3>>;
const Gemm kGemmU4 = kGrouped<Codes<4>>;
const Gemm kGemmU4Book = kGrouped<BookCodes>;

}  // namespace quire::QUIRE_ISA
