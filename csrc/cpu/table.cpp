// One instruction set's kernel table. Compiled once an ISA, as are all kernel units.
#include "norm.h"

#define QUIRE_STRING_(x) #x
#define QUIRE_STRING(x) QUIRE_STRING_(x)

namespace quire::QUIRE_ISA {

namespace {
const Kernels kTable = {
    QUIRE_STRING(QUIRE_ISA),
    {rms_norm<float>, rms_norm<bf16>, rms_norm<f16>},
    {add_rms_norm<float>, add_rms_norm<bf16>, add_rms_norm<f16>},
};
}  // namespace

const Kernels& table() { return kTable; }

}  // namespace quire::QUIRE_ISA
