// The common parts of an ISA's GEMM kernels: sizes, epilogues, the quantizer of x.
#pragma once

#include "activation_math.h"
#include "kernels.h"
#include "tiles.h"

namespace quire::QUIRE_ISA {

extern const Gemm kGemmF32, kGemmF16, kGemmBF16, kGemmS8, kGemmS8A16;
extern const Gemm kGemmU2, kGemmU3, kGemmU4, kGemmU4Book, kGemmU5, kGemmU6, kGemmU8;
extern const Gemm kGemmF8E4M3, kGemmF8E5M2;
#if defined(QUIRE_TILES)
extern const Gemm kGemmTilesBF16, kGemmTilesS8, kGemmTilesS8A16, kGemmTilesU2, kGemmTilesU3;
extern const Gemm kGemmTilesU4, kGemmTilesU4Book, kGemmTilesU5, kGemmTilesU6, kGemmTilesU8;
extern const Gemm kGemmTilesF8E4M3, kGemmTilesF8E5M2;
#endif

namespace {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
// A field of GemmTuning: 0 is the kernel's own value; negative is none.
inline int64_t tuned(int64_t field, int64_t own) { return field == 0 ? own : larger(field, 0); }

// A processor with AVX-512 BF16 and without tiles is a Zen. For one or two rows of x, its own
// prefetchers follow W best without hints: int4 came at 58 GB/s on Zen 4, and at 49 with hints. With
// more rows, W is read too slowly for them to see a stream, and hints far ahead help: int4 with two
// rows came at 50 GB/s instead of 32.
#if defined(__AVX512BF16__) && !defined(QUIRE_TILES)
constexpr bool kZen = true;
#else
constexpr bool kZen = false;
#endif
constexpr int64_t kStreamAhead = kZen ? 16384 : 4096;  // prefetch distance in bytes

template <class T>
inline void put(T* y, Vec v, int64_t n) {
  if (n >= kLanes) {
    store(y, v);
  } else {
    store(y, v, n);
  }
}

// A product, rounded to T, and stored. The instruction for bf16 treats subnormal floats as zero. That is
// acceptable for sums of products, but not for results of activations.
template <class T>
inline Vec rounded(Vec sum) {
  return round<T>(sum);
}
template <class T>
inline void put_rounded(T* y, Vec sum, int64_t n) {
  put(y, sum, n);
}
#if defined(__AVX512BF16__)
inline __m256i fast_bf16(Vec v) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)); }
template <>
inline Vec rounded<bf16>(Vec sum) {
  return widen(bf16{}, fast_bf16(sum));
}
template <>
inline void put_rounded(bf16* y, Vec sum, int64_t n) {
  _mm256_mask_storeu_epi16(y, n >= kLanes ? 0xffff : first(n), fast_bf16(sum));
}

// 32 int8 as bfloat16, which is exact.
inline __m512 s8_floats(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
inline __m512bh s8_pairs(const uint8_t* p) {
  return _mm512_cvtne2ps_pbh(s8_floats(p + 16), s8_floats(p));
}
#endif

// No activation.
struct Identity {};

// The epilogue of `rows` rows from r on and the packed rows n0 … n0+31: sums[rows][32] get their bias,
// are rounded, pass through the activation, and are stored if y has the column.
template <class T, class Activation>
inline void finish_each(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, const float* sums) {
  T* y = static_cast<T*>(a.y) + r * a.y_stride + n0;
  const int64_t cols = smaller(kBlockRows, a.columns - n0);
  for (; rows > 0; --rows, y += a.y_stride, sums += kBlockRows) {
    for (int64_t j = 0; j < cols; j += kLanes) {
      Vec v = load(sums + j);
      if (a.bias != nullptr) v = add(v, load(a.bias + n0 + j));
      if constexpr (__is_same(Activation, Identity)) {
        put_rounded(y + j, v, cols - j);
      } else {
        put(y + j, Activation::of(rounded<T>(v)), cols - j);
      }
    }
  }
}

template <class T, class Gate>
inline void finish_gated(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, const float* sums) {
  constexpr int64_t kHalf = kBlockRows / 2;
  T* y = static_cast<T*>(a.y) + r * a.y_stride + n0 / 2;
  const int64_t cols = smaller(kHalf, a.columns - n0 / 2);
  for (; rows > 0; --rows, y += a.y_stride, sums += kBlockRows) {
    for (int64_t j = 0; j < cols; j += kLanes) {
      Vec gate = load(sums + j), up = load(sums + kHalf + j);
      if (a.bias != nullptr) {
        gate = add(gate, load(a.bias + n0 + j));
        up = add(up, load(a.bias + n0 + kHalf + j));
      }
      put(y + j, Gate::of(rounded<T>(gate), rounded<T>(up)), cols - j);
    }
  }
}

template <class T>
inline void finish_as(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, const float* sums) {
  switch (a.epilogue) {
#define QUIRE_FINISH(code, name, F, gated)                         \
  case code:                                                       \
    if constexpr (gated) {                                         \
      return finish_gated<T, F>(a, r, rows, n0, sums);             \
    } else {                                                       \
      return finish_each<T, F>(a, r, rows, n0, sums);              \
    }
    QUIRE_ACTIVATIONS(QUIRE_FINISH)
#undef QUIRE_FINISH
    default: return finish_each<T, Identity>(a, r, rows, n0, sums);
  }
}

__attribute__((noinline)) inline void finish(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0,
                                             const float* sums) {
  switch (a.y_dtype) {
    case kFloat32: return finish_as<float>(a, r, rows, n0, sums);
    case kFloat16: return finish_as<f16>(a, r, rows, n0, sums);
    default: return finish_as<bf16>(a, r, rows, n0, sums);
  }
}

// The same for sums of int8 products, which are scaled by W's row and then by x's row.
// At most 32 rows.
inline void finish(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, const int32_t* sums,
                   const float* x_scale) {
  alignas(64) float scaled[32 * kBlockRows];
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < kBlockRows; ++j) {
      const int64_t at = i * kBlockRows + j;
      scaled[at] = static_cast<float>(sums[at]) * a.scale[n0 + j] * x_scale[i];
    }
  }
  finish(a, r, rows, n0, scaled);
}

// Bytes of one quantized row of x.
inline int64_t s8_bytes(const GemmArgs& a) { return round_up(a.k, kStepBytes); }
// s8 scratch: the rows' scales, then the quantized rows.
inline float* x_scales(const GemmArgs& a) { return static_cast<float*>(a.scratch); }
inline int8_t* x_s8(const GemmArgs& a) {
  return static_cast<int8_t*>(a.scratch) + round_up(a.rows * 4, 64);
}
inline int64_t s8_scratch_bytes(const GemmArgs& a) {
  return round_up(a.rows * 4, 64) + a.rows * s8_bytes(a);
}

// The epilogue of a kernel with sums of either type. Sums of s8_a16 get their scales.
inline void finish_sums(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, float* sums) {
  if (a.scale != nullptr) {
    for (int64_t i = 0; i < rows * kBlockRows; i += kLanes) {
      store(sums + i, mul(load(sums + i), load(a.scale + n0 + i % kBlockRows)));
    }
  }
  finish(a, r, rows, n0, sums);
}
inline void finish_sums(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0,
                        const int32_t* sums) {
  finish(a, r, rows, n0, sums, x_scales(a) + r);
}

// One row of x as bf16 in steps of 32, `step_stride` bytes apart; zeros fill the last one.
template <class T>
inline void round_row(const GemmArgs& a, int64_t r, uint8_t* out, int64_t step_stride) {
  const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
  for (int64_t i = 0; i < a.k; i += 32, out += step_stride) {
    bf16* step = reinterpret_cast<bf16*>(out);
    for (int64_t j = 0; j < 32; j += kLanes) {
      const int64_t left = a.k - i - j;
      if (left >= kLanes) {
        store(step + j, load(x + i + j));
      } else {
        store(step + j, left > 0 ? load(x + i + j, left) : zero());
      }
    }
  }
}

inline void round_row(const GemmArgs& a, int64_t r, uint8_t* out, int64_t step_stride) {
  switch (a.x_dtype) {
    case kFloat32: return round_row<float>(a, r, out, step_stride);
    case kFloat16: return round_row<f16>(a, r, out, step_stride);
    default: return round_row<bf16>(a, r, out, step_stride);
  }
}

// Quantizes one row to int8 in steps of 64, `step_stride` bytes apart; zeros fill the last one. The
// scale follows the largest |x|, or is a.input_scale, if set, with saturation.
// Returns x / q. If an x is not finite, neither are the result and the row's products.
// scaled(x) is the value to round, within int8's range.
template <class T, class Scaled>
inline void quantize_by(const T* __restrict x, int64_t k, int8_t* __restrict q, int64_t step_stride,
                        const Scaled& scaled) {
  // Adding 1.5 * 2^23 leaves the number, rounded to nearest even, in the lowest bits.
  constexpr float kRound = 0x1.8p23f;
  const int64_t whole = k / kStepBytes;
  for (int64_t s = 0; s < whole; ++s) {
    const T* from = x + s * kStepBytes;
    int8_t* to = q + s * step_stride;
    for (int64_t i = 0; i < kStepBytes; ++i) {
      to[i] = static_cast<int8_t>(__builtin_bit_cast(uint32_t, scaled(as_float(from[i])) + kRound));
    }
  }
  if (k % kStepBytes != 0) {
    int8_t* to = q + whole * step_stride;
    for (int64_t i = 0; i < kStepBytes; ++i) {
      const int64_t at = whole * kStepBytes + i;
      const float v = at < k ? scaled(as_float(x[at])) : 0.0f;
      to[i] = static_cast<int8_t>(__builtin_bit_cast(uint32_t, v + kRound));
    }
  }
}

template <class T>
inline float quantize_row_as(const GemmArgs& a, int64_t r, int8_t* q, int64_t step_stride) {
  const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
  uint32_t largest = 0;  // as bits, which have the order of the magnitudes, with NaN above all
  for (int64_t i = 0; i < a.k; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, as_float(x[i])) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  const float top = __builtin_bit_cast(float, largest);
  if (a.input_scale > 0.0f) {
    const float unit = a.input_scale;
    quantize_by(x, a.k, q, step_stride, [unit](float v) {
      const float scaled = v / unit, low = scaled > -128.0f ? scaled : -128.0f;
      return low < 127.0f ? low : 127.0f;
    });
    return largest < 0x7f800000u ? unit : top;
  }
  const float inverse = top > 1e-36f ? 127.0f / top : 0.0f;
  quantize_by(x, a.k, q, step_stride, [inverse](float v) { return v * inverse; });
  return top / 127.0f;
}
inline float quantize_row(const GemmArgs& a, int64_t r, int8_t* q, int64_t step_stride) {
  switch (a.x_dtype) {
    case kFloat32: return quantize_row_as<float>(a, r, q, step_stride);
    case kFloat16: return quantize_row_as<f16>(a, r, q, step_stride);
    default: return quantize_row_as<bf16>(a, r, q, step_stride);
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
