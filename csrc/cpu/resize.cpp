#include "resize.h"

namespace quire::QUIRE_ISA {

namespace {

// Loops of constant length, of which compilers make vectors: sums of int32 are the same in any order.
constexpr int kPart = 32;
constexpr int kGroup = 4 * kResizeRows;
typedef int32_t Ints __attribute__((vector_size(32)));  // as an array, sums would stay in memory

inline uint8_t rounded(int32_t sum) {
  const int32_t x = (sum + (1 << (kResizeBits - 1))) >> kResizeBits;
  return static_cast<uint8_t>(x < 0 ? 0 : x > 255 ? 255 : x);
}

inline void part(const uint8_t* in, int64_t stride, const int32_t* weights, int64_t taps, uint8_t* out) {
  int32_t sum[kPart];
  for (int32_t& each : sum) each = 0;
  for (int64_t i = 0; i < taps; ++i, in += stride) {
    const int32_t weight = weights[i];
    for (int j = 0; j < kPart; ++j) sum[j] += weight * in[j];
  }
  for (int j = 0; j < kPart; ++j) out[j] = rounded(sum[j]);
}

void lines(const uint8_t* in, int64_t stride, const int32_t* weights, int64_t taps, uint8_t* out,
           int64_t n) {
  int64_t j = 0;
  for (; j + kPart <= n; j += kPart) part(in + j, stride, weights, taps, out + j);
  if (j < n && n >= kPart) {  // some are computed twice
    part(in + n - kPart, stride, weights, taps, out + n - kPart);
    return;
  }
  for (; j < n; ++j) {
    int32_t sum = 0;
    for (int64_t i = 0; i < taps; ++i) sum += weights[i] * in[i * stride + j];
    out[j] = rounded(sum);
  }
}

void widen(const uint8_t* const* from, int64_t width, int32_t* wide) {
  for (int64_t row = 0; row < kResizeRows; ++row) {
    const uint8_t* const line = from[row];
    int32_t* const to = wide + 4 * row;
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < 3; ++c) to[kGroup * x + c] = line[3 * x + c];
    }
  }
}

void pixel(const int32_t* wide, const int32_t* weights, int64_t taps, uint8_t* const* out) {
  constexpr int kVectors = kGroup / 8;
  Ints part[kVectors] = {};
  for (int64_t i = 0; i < taps; ++i, wide += kGroup) {
    for (int j = 0; j < kVectors; ++j) {
      Ints values;
      __builtin_memcpy(&values, wide + 8 * j, sizeof(values));
      part[j] += values * weights[i];
    }
  }
  int32_t sum[kGroup];
  __builtin_memcpy(sum, part, sizeof(sum));
  uint8_t bytes[kGroup];
  for (int j = 0; j < kGroup; ++j) bytes[j] = rounded(sum[j]);
  for (int64_t row = 0; row < kResizeRows; ++row) __builtin_memcpy(out[row], bytes + 4 * row, 3);
}

}  // namespace

extern const ResizeKernels kResize = {lines, widen, pixel};

}  // namespace quire::QUIRE_ISA
