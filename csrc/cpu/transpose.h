// Rows to columns, of AVX-512.
#pragma once

#include "simd.h"

namespace quire::QUIRE_ISA {
namespace {

// Transposes 16 x 16 elements of 4 bytes.
inline void transpose(const __m512i* in, uint32_t* out) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  // b[4i + c], 128-bit part p: column 4p + c of rows 4i .. 4i + 3
  for (int c = 0; c < 4; ++c) {
    const __m512i x = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88);
    const __m512i y = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
    const __m512i z = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
    const __m512i w = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
    _mm512_store_si512(out + 16 * c, _mm512_shuffle_i32x4(x, z, 0x88));
    _mm512_store_si512(out + 16 * (4 + c), _mm512_shuffle_i32x4(y, w, 0x88));
    _mm512_store_si512(out + 16 * (8 + c), _mm512_shuffle_i32x4(x, z, 0xdd));
    _mm512_store_si512(out + 16 * (12 + c), _mm512_shuffle_i32x4(y, w, 0xdd));
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
