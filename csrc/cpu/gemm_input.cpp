// Converts rows of x to the operands of an ISA's GEMM kernels.
#include "gemm_parts.h"

namespace quire::QUIRE_ISA {

namespace {

template <class T>
void round_row_as(const GemmArgs& a, int64_t r, uint8_t* out, int64_t step_stride) {
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

// The bits of |v|, which have the order of the magnitudes, with NaN above all.
inline uint32_t magnitude(float v) { return __builtin_bit_cast(uint32_t, v) & 0x7fffffff; }
inline uint16_t magnitude(bf16 v) { return v.bits & 0x7fff; }
inline uint16_t magnitude(f16 v) { return v.bits & 0x7fff; }

// The largest of k magnitudes; NaN or infinity if a value is not finite.
template <class T>
float top_of(const T* x, int64_t k) {
  decltype(magnitude(*x)) top = 0;
  for (int64_t i = 0; i < k; ++i) top = magnitude(x[i]) > top ? magnitude(x[i]) : top;
  return as_float(__builtin_bit_cast(T, top));
}

// The values of a step as floats, in `room` unless they are.
inline const float* step_floats(const float* x, float*) { return x; }
template <class T>
const float* step_floats(const T* x, float* room) {
  for (int64_t i = 0; i < kStepBytes; i += kLanes) store(room + i, load(x + i));
  return room;
}

// scaled(x) is the value to round, within int8's range.
template <class T, class Scaled>
void quantize_by(const T* __restrict x, int64_t k, int8_t* __restrict q, int64_t step_stride,
                 const Scaled& scaled) {
  // Adding 1.5 * 2^23 leaves the number, rounded to nearest even, in the lowest bits.
  constexpr float kRound = 0x1.8p23f;
  const int64_t whole = k / kStepBytes;
  for (int64_t s = 0; s < whole; ++s) {
    alignas(64) float room[kStepBytes];
    const float* from = step_floats(x + s * kStepBytes, room);
    int8_t* to = q + s * step_stride;
    for (int64_t i = 0; i < kStepBytes; ++i) {
      to[i] = static_cast<int8_t>(__builtin_bit_cast(uint32_t, scaled(from[i]) + kRound));
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
float quantize_row_as(const GemmArgs& a, int64_t r, int8_t* q, int64_t step_stride) {
  const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
  const float top = top_of(x, a.k);
  if (a.input_scale > 0.0f) {
    const float unit = a.input_scale;
    quantize_by(x, a.k, q, step_stride, [unit](float v) {
      const float scaled = v / unit, low = scaled > -128.0f ? scaled : -128.0f;
      return low < 127.0f ? low : 127.0f;
    });
    return top < __builtin_inff() ? unit : top;
  }
  const float inverse = top > 1e-36f ? 127.0f / top : 0.0f;
  quantize_by(x, a.k, q, step_stride, [inverse](float v) { return v * inverse; });
  return top / 127.0f;
}

}  // namespace

void round_row(const GemmArgs& a, int64_t r, uint8_t* out, int64_t step_stride) {
  switch (a.x_dtype) {
    case kFloat32: return round_row_as<float>(a, r, out, step_stride);
    case kFloat16: return round_row_as<f16>(a, r, out, step_stride);
    default: return round_row_as<bf16>(a, r, out, step_stride);
  }
}

float quantize_row(const GemmArgs& a, int64_t r, int8_t* q, int64_t step_stride) {
  switch (a.x_dtype) {
    case kFloat32: return quantize_row_as<float>(a, r, q, step_stride);
    case kFloat16: return quantize_row_as<f16>(a, r, q, step_stride);
    default: return quantize_row_as<bf16>(a, r, q, step_stride);
  }
}

}  // namespace quire::QUIRE_ISA
