// What NEON does in fewer instructions than the compiler's own vectors (simd_portable.h has the rest).
#pragma once

#include <arm_neon.h>

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define QUIRE_NEON_BF16
#endif

namespace quire::QUIRE_ISA {
namespace {

inline Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
inline float sum(Vec v) { return vaddvq_f32(v); }
inline Vec fold(const Vec* v) {
  return vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3]));
}
inline Vec join(const Vec* folded) { return folded[0]; }
inline float largest(Vec v) { return vmaxvq_f32(v); }

inline Vec widen(bf16, Half h) { return vec_of(vshll_n_u16(h, 16)); }
inline Vec widen(f16, Half h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
inline Half narrow(f16, Vec v) { return vreinterpret_u16_f16(vcvt_f16_f32(v)); }

// A float whose upper half is v rounded to bf16.
#if defined(QUIRE_NEON_BF16)
inline Half narrow(bf16, Vec v) { return vreinterpret_u16_bf16(vcvt_bf16_f32(v)); }
inline Bits round_bf16(Vec v) { return vshll_n_u16(narrow(bf16{}, v), 16); }
#else
// NaN is kept apart: the carry could make it 0.
inline Bits round_bf16(Vec v) {
  const Bits bits = bits_of(v);
  const Bits up = bits + 0x7fff + ((bits >> 16) & 1);
  return vbslq_u32(vceqq_f32(v, v), up, all(0x7fc00000));
}
inline Half narrow(bf16, Vec v) { return vshrn_n_u32(round_bf16(v), 16); }
#endif

inline Vec floats(int32x4_t v) { return vcvtq_f32_s32(v); }
inline Vec load(const int32_t* p) { return floats(vld1q_s32(p)); }
inline Vec load(const int8_t* p) {
  uint32_t bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  const int16x8_t shorts = vmovl_s8(vcreate_s8(bytes));
  return floats(vmovl_s16(vget_low_s16(shorts)));
}

}  // namespace
}  // namespace quire::QUIRE_ISA
