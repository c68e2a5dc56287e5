// Rounding of weights to codes of few bits, in kernel form.
#pragma once

#include "kernels.h"

namespace quire::QUIRE_ISA {

// Rounds w[0 … n-1], n at most 128, to w ~ scale * q + offset with q in 0 … 2^bits - 1, bits at most 8.
//
// Scale and offset have 11 significant bits, as f16 has. They minimise the squared error as far as a
// search goes: from ranges clipped to 100, 92, 84 and 76 % of the values', the nearest q and the
// least-squares line through (q, w) are found in turn (Lloyd's method), and the best is kept.
// Equal values give scale 0; values that are not finite give NaN. The same bits on every ISA.
void quantize_codes(int bits, const float* w, int64_t n, uint8_t* q, float* scale, float* offset);

}  // namespace quire::QUIRE_ISA
