// Rotary embedding (NeoX order), alone and fused with what surrounds it in attention.
//
// Products and differences round one by one, as torch's do: the results are equal to the bit.
#include "rope.h"

#include "float8.h"
#include "norm_row.h"
#include "row_range.h"
#include "simd_float8.h"

namespace quire::QUIRE_ISA {

namespace {

// How every head of one token is turned.
struct Turn {
  const float* cos;  // null: not at all
  const float* sin;
  int64_t half;

  Turn(const float* cos_sin, const int64_t* positions, int64_t row, int64_t rotary_dim)
      : cos(cos_sin == nullptr ? nullptr : cos_sin + positions[row] * rotary_dim),
        sin(cos == nullptr ? nullptr : cos + rotary_dim / 2),
        half(cos == nullptr ? 0 : rotary_dim / 2) {}
};

// y may be x.
template <class T>
void turn_head(T* y, const T* x, const Turn& t, int64_t head_dim) {
  int64_t i = 0;
  for (; i + kLanes <= t.half; i += kLanes) {
    const Vec a = load(x + i), b = load(x + t.half + i);
    const Vec cos = load(t.cos + i), sin = load(t.sin + i);
    store(y + i, sub(mul(a, cos), mul(b, sin)));
    store(y + t.half + i, add(mul(b, cos), mul(a, sin)));
  }
  if (i < t.half) {
    const int64_t n = t.half - i;
    const Vec a = load(x + i, n), b = load(x + t.half + i, n);
    const Vec cos = load(t.cos + i, n), sin = load(t.sin + i, n);
    store(y + i, sub(mul(a, cos), mul(b, sin)), n);
    store(y + t.half + i, add(mul(b, cos), mul(a, sin)), n);
  }
  copy(y + 2 * t.half, x + 2 * t.half, head_dim - 2 * t.half);
}

// One head on its way: normalized, if there is a weight, and turned.
template <class T>
void place_head(T* y, const T* x, const Gain& gain, float eps, const Turn& t, int64_t head_dim) {
  if (gain.weight != nullptr) {
    scale_row(y, x, gain, head_dim, inverse_rms(PlainRow<T>{x}, head_dim, eps));
    x = y;
  }
  turn_head(y, x, t, head_dim);
}

// Elements of a quantized head: the largest, and the nearest one to x.
template <class Q>
struct Element;
template <>
struct Element<int8_t> {
  static constexpr float kMost = 127.0f;
  // Adding 1.5 * 2^23 leaves the number, rounded to nearest even, in the lowest bits.
  static int8_t of(float x) {
    return static_cast<int8_t>(__builtin_bit_cast(uint32_t, x + 0x1.8p23f));
  }
};
template <class F8>
struct Element {
  static constexpr float kMost = Float8<F8>::kMost;
  static F8 of(float x) { return {to_float8<F8>(x)}; }
};

template <class T>
void widen_head(float* row, const T* x, int64_t head_dim) {
  int64_t i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) store(row + i, load(x + i));
  if (i < head_dim) store(row + i, load(x + i, head_dim - i), head_dim - i);
}

// The scale of a head; if an x is not finite, neither is the scale.
template <class Q>
bf16 scale_of(const float* row, int64_t head_dim) {
  uint32_t largest = 0;  // as bits: they order like the numbers, with NaN above all
  for (int64_t i = 0; i < head_dim; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, row[i]) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  // Rounded up, so that no element passes the largest; NaN as it comes could be carried to 0.
  const float exact = largest > 0x7f800000
                          ? __builtin_nanf("")
                          : __builtin_bit_cast(float, largest) / Element<Q>::kMost;
  return {static_cast<uint16_t>((__builtin_bit_cast(uint32_t, exact) + 0xffff) >> 16)};
}

// Stores a head as Q: with a scale of its own, put where `scale` points to, or else in units.
template <class Q, class T>
void quantize_head(void* to, const T* x, int64_t head_dim, bf16* scale, float unit) {
  float row[kAttentionHeadDim];
  widen_head(row, x, head_dim);
  float divisor = unit;
  if (scale != nullptr) {
    *scale = scale_of<Q>(row, head_dim);
    divisor = scale->bits == 0 ? 1.0f : as_float(*scale);
  }
  Q* const y = static_cast<Q*>(to);
  for (int64_t i = 0; i < head_dim; ++i) y[i] = Element<Q>::of(row[i] / divisor);
}

// Where one of the two caches is, and how it holds a head.
struct Cache {
  uint8_t* elements;
  bf16* scales;
  int dtype;
  float unit;

  // Puts a head at element `at`; its scale is number `scale_at`.
  template <class T>
  void put(int64_t at, int64_t scale_at, const T* x, int64_t head_dim) const {
    bf16* const scale = scales == nullptr ? nullptr : scales + scale_at;
    switch (dtype) {
      case kInt8: return quantize_head<int8_t>(elements + at, x, head_dim, scale, unit);
      case kFloat8E4M3: return quantize_head<f8_e4m3>(elements + at, x, head_dim, scale, unit);
      case kFloat8E5M2: return quantize_head<f8_e5m2>(elements + at, x, head_dim, scale, unit);
      default: break;
    }
    if (dtype == code_of(T{})) return copy(reinterpret_cast<T*>(elements) + at, x, head_dim);
    float row[kAttentionHeadDim];  // to bfloat16
    bf16* const y = reinterpret_cast<bf16*>(elements) + at;
    widen_head(row, x, head_dim);
    int64_t i = 0;
    for (; i + kLanes <= head_dim; i += kLanes) store(y + i, load(row + i));
    if (i < head_dim) store(y + i, load(row + i, head_dim - i), head_dim - i);
  }

  static int code_of(float) { return kFloat32; }
  static int code_of(bf16) { return kBFloat16; }
  static int code_of(f16) { return kFloat16; }
};

}  // namespace

template <class T>
void rotary(const RotaryArgs& a, int64_t task) {
  const RowRange range(a.rows, a.task_rows, task);
  for (int64_t r = range.begin; r < range.end; ++r) {
    const Turn turn(a.cos_sin, a.positions, r, a.rotary_dim);
    T* y = row_at<T>(a.y, r, a.y_stride);
    const T* x = row_at<T>(a.x, r, a.x_stride);
    for (int64_t h = 0; h < a.heads; ++h) {
      turn_head(y + h * a.head_dim, x + h * a.x_head_stride, turn, a.head_dim);
    }
  }
}

template <class T>
void rope_kv_write(const RopeKvArgs& a, int64_t task) {
  const Cache keys{static_cast<uint8_t*>(a.k_cache), a.k_scale, a.cache_dtype, a.k_unit};
  const Cache values{static_cast<uint8_t*>(a.v_cache), a.v_scale, a.cache_dtype, a.v_unit};
  const bool plain = a.cache_dtype == Cache::code_of(T{});
  const RowRange range(a.rows, a.task_rows, task);
  const int64_t d = a.head_dim;
  const Gain q_norm{a.q_norm, a.wide_norms}, k_norm{a.k_norm, a.wide_norms};
  for (int64_t r = range.begin; r < range.end; ++r) {
    const Turn turn(a.cos_sin, a.positions, r, a.rotary_dim);
    T* q_out = row_at<T>(a.q_out, r, a.heads * d);
    const T* q = row_at<T>(a.q, r, a.q_stride);
    for (int64_t h = 0; h < a.heads; ++h) {
      place_head(q_out + h * d, q + h * d, q_norm, a.eps, turn, d);
    }
    const int64_t block = a.slot_mapping[r] / a.block_size;
    const int64_t offset = a.slot_mapping[r] % a.block_size;
    const int64_t slot = block * a.block_stride + offset * d;
    const T* k = row_at<T>(a.k, r, a.k_stride);
    const T* v = row_at<T>(a.v, r, a.v_stride);
    for (int64_t h = 0; h < a.kv_heads; ++h, k += d, v += d) {
      const int64_t at = slot + h * a.head_stride;
      const int64_t scale = (block * a.kv_heads + h) * a.block_size + offset;
      if (plain) {
        place_head(reinterpret_cast<T*>(keys.elements) + at, k, k_norm, a.eps, turn, d);
      } else {
        T turned[kAttentionHeadDim];
        place_head(turned, k, k_norm, a.eps, turn, d);
        keys.put(at, scale, turned, d);
      }
      values.put(at, scale, v, d);
    }
  }
}

#define QUIRE_INSTANCES(T)                              \
  template void rotary<T>(const RotaryArgs&, int64_t); \
  template void rope_kv_write<T>(const RopeKvArgs&, int64_t);

QUIRE_INSTANCES(float)
QUIRE_INSTANCES(bf16)
QUIRE_INSTANCES(f16)

}  // namespace quire::QUIRE_ISA
