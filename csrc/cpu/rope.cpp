// Rotary embedding (NeoX order), alone and fused with the operations around it in attention.
//
// Each product and difference is rounded separately, as in torch, so results are equal to the bit.
#include "float8.h"
#include "int4.h"
#include "kernels.h"
#include "norm_row.h"
#include "row_range.h"
#include "simd_float8.h"

namespace quire::QUIRE_ISA {

namespace {

// The rotation of every head of one token.
struct Turn {
  const float* cos;  // null: no rotation
  const float* sin;
  int64_t half;

  Turn(const float* cos_sin, const int64_t* positions, int64_t row, int64_t rotary_dim)
      : cos(cos_sin == nullptr ? nullptr : cos_sin + positions[row] * rotary_dim),
        sin(cos == nullptr ? nullptr : cos + rotary_dim / 2),
        half(cos == nullptr ? 0 : rotary_dim / 2) {}
};

// A row in memory that is normalized when it is read, with the same bits as rms_norm.
template <class T, class W>
struct NormedRow {
  const T* x;
  const W* weight;
  float scale;  // 1 / rms

  Vec at(int64_t i) const { return gained(load(weight + i), load(x + i)); }
  Vec at(int64_t i, int64_t n) const { return gained(load(weight + i, n), load(x + i, n)); }
  Vec gained(Vec w, Vec v) const {
    return round<T>(mul(w, round<W>(mul(v, broadcast(scale)))));
  }
};

// Copies the columns of a head that are not rotated. y may be the row itself.
template <class T>
void keep_columns(T* y, const PlainRow<T>& row, int64_t begin, int64_t end) {
  copy(y + begin, row.x + begin, end - begin);
}
template <class T, class Row>
void keep_columns(T* y, const Row& row, int64_t begin, int64_t end) {
  each_vector(end - begin, [&](int64_t i, auto... rest) {
    store(y + begin + i, row.at(begin + i, rest...), rest...);
  });
}

// y may be the row itself.
template <class T, class Row>
void turn_head(T* y, const Row& row, const Turn& t, int64_t head_dim) {
  each_vector(t.half, [&](int64_t i, auto... rest) {
    const Vec a = row.at(i, rest...), b = row.at(t.half + i, rest...);
    const Vec cos = load(t.cos + i, rest...), sin = load(t.sin + i, rest...);
    store(y + i, sub(mul(a, cos), mul(b, sin)), rest...);
    store(y + t.half + i, add(mul(b, cos), mul(a, sin)), rest...);
  });
  keep_columns(y, row, 2 * t.half, head_dim);
}

constexpr int64_t kHeads = 16;  // heads whose norms are computed together, to hide a sum's latency
constexpr int64_t kTurned = 4096;  // elements buffered for a cache of another dtype
constexpr int64_t kFloats = 256;   // elements of a head that are quantized at a time

// Writes at most kHeads heads of a token, y_step elements apart: normalized, if there is a weight, and
// rotated.
template <class T>
void place_heads(T* y, int64_t y_step, const T* x, int64_t heads, const Gain& gain, float eps,
                 const Turn& t, int64_t head_dim) {
  float scales[kHeads];
  for (int64_t h = 0; gain.weight != nullptr && h < heads; ++h) {
    scales[h] = inverse_rms(PlainRow<T>{x + h * head_dim}, head_dim, eps);
  }
  for (int64_t h = 0; h < heads; ++h, y += y_step, x += head_dim) {
    if (gain.weight == nullptr) {
      turn_head(y, PlainRow<T>{x}, t, head_dim);
    } else if (gain.wide) {
      turn_head(y, NormedRow<T, float>{x, static_cast<const float*>(gain.weight), scales[h]}, t,
                head_dim);
    } else {
      turn_head(y, NormedRow<T, T>{x, static_cast<const T*>(gain.weight), scales[h]}, t, head_dim);
    }
  }
}

// Calls some(first, count) for ranges of at most `most` heads.
template <class Some>
void each_heads(int64_t heads, int64_t most, const Some& some) {
  for (int64_t h = 0; h < heads; h += most) some(h, heads - h < most ? heads - h : most);
}

// Elements of a quantized head: the largest value, and the conversion of x to the nearest one.
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

// Calls some(first, n, floats) for each n <= kFloats elements of the head.
template <class T, class Some>
void each_floats(const T* x, int64_t head_dim, const Some& some) {
  float row[kFloats];
  for (int64_t first = 0; first < head_dim; first += kFloats) {
    const int64_t n = head_dim - first < kFloats ? head_dim - first : kFloats;
    convert(row, x + first, n);
    some(first, n, row);
  }
}

// The scale of a head; not finite if any element is not finite.
template <class Q, class T>
bf16 scale_of(const T* x, int64_t head_dim) {
  uint32_t largest = 0;  // as bits, which have the order of the numbers, with NaN above all
  each_floats(x, head_dim, [&](int64_t, int64_t n, const float* row) {
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t bits = __builtin_bit_cast(uint32_t, row[i]) & 0x7fffffff;
      largest = bits > largest ? bits : largest;
    }
  });
  // Rounded up, so that no element exceeds the largest value. NaN is excluded: a carry could make it 0.
  const float exact = largest > 0x7f800000
                          ? __builtin_nanf("")
                          : __builtin_bit_cast(float, largest) / Element<Q>::kMost;
  return {static_cast<uint16_t>((__builtin_bit_cast(uint32_t, exact) + 0xffff) >> 16)};
}

// Stores a head as Q. If `scale` is not null, the head gets its own scale, stored there.
template <class Q, class T>
void quantize_head(void* to, const T* x, int64_t head_dim, bf16* scale, float unit) {
  float divisor = unit;
  if (scale != nullptr) {
    *scale = scale_of<Q>(x, head_dim);
    divisor = scale->bits == 0 ? 1.0f : as_float(*scale);
  }
  each_floats(x, head_dim, [&](int64_t first, int64_t n, const float* row) {
    Q* const y = static_cast<Q*>(to) + first;
    for (int64_t i = 0; i < n; ++i) y[i] = Element<Q>::of(row[i] / divisor);
  });
}

// One of the two caches, and how it stores a head.
struct Cache {
  uint8_t* elements;
  void* scales;
  uint8_t* signs;
  int dtype;
  float unit;

  // Stores a head at element `at`, and its scale at index `scale_at`.
  template <class T>
  void put(int64_t at, int64_t scale_at, const T* x, int64_t head_dim) const {
    bf16* const scale = scales == nullptr ? nullptr : static_cast<bf16*>(scales) + scale_at;
    switch (dtype) {
      case kInt8: return quantize_head<int8_t>(elements + at, x, head_dim, scale, unit);
      case kFloat8E4M3: return quantize_head<f8_e4m3>(elements + at, x, head_dim, scale, unit);
      case kFloat8E5M2: return quantize_head<f8_e5m2>(elements + at, x, head_dim, scale, unit);
      case kInt4: return pack(at, scale_at, x, head_dim);
      default: break;
    }
    if (dtype == code_of(T{})) return copy(reinterpret_cast<T*>(elements) + at, x, head_dim);
    convert(reinterpret_cast<bf16*>(elements) + at, x, head_dim);
  }

  template <class T>
  void pack(int64_t at, int64_t scale_at, const T* x, int64_t head_dim) const {
    alignas(32) float row[kTurned];
    convert(row, x, head_dim);
    rotate(row, head_dim);
    put_codes(elements + at / 2, signs == nullptr ? nullptr : signs + scale_at * head_dim / 8,
              static_cast<uint8_t*>(scales) + scale_at, row, head_dim);
  }

  static int code_of(float) { return kFloat32; }
  static int code_of(bf16) { return kBFloat16; }
  static int code_of(f16) { return kFloat16; }
};

// Prefetches the cache lines that a token's keys and values will be written to: a store to a line that
// is in no cache would wait for memory, and delay the stores after it.
template <class T>
void fetch_slot(const RopeKvArgs& a, int64_t row) {
  const int64_t item = a.cache_dtype >= kInt8 ? 1 : a.cache_dtype == kFloat32 ? 4 : 2;
  const bool packed = a.cache_dtype == kInt4;
  const auto bytes = [&](int64_t elements) { return elements * item >> packed; };
  const int64_t block = a.slot_mapping[row] / a.block_size;
  const int64_t offset = a.slot_mapping[row] % a.block_size;
  const int64_t slot = bytes(block * a.block_stride + offset * a.head_dim);
  const char *const k = static_cast<const char*>(a.k_cache) + slot,
             *const v = static_cast<const char*>(a.v_cache) + slot;
  for (int64_t h = 0; h < a.kv_heads; ++h) {
    for (int64_t i = 0; i < bytes(a.head_dim); i += 64) {
      __builtin_prefetch(k + bytes(h * a.head_stride) + i, 1);
      if (a.v_cache != nullptr) __builtin_prefetch(v + bytes(h * a.head_stride) + i, 1);
    }
    if (a.k_scale == nullptr) continue;
    const int64_t scale = (block * a.kv_heads + h) * a.block_size + offset;
    const int64_t at = 2 * scale >> packed;
    __builtin_prefetch(static_cast<char*>(a.k_scale) + at, 1);
    if (a.v_scale != nullptr) __builtin_prefetch(static_cast<char*>(a.v_scale) + at, 1);
    if (packed) __builtin_prefetch(a.k_signs + scale * a.head_dim / 8, 1);
  }
}

}  // namespace

template <class T>
void rope_kv_write(const RopeKvArgs& a, int64_t task) {
  const Cache keys{static_cast<uint8_t*>(a.k_cache), a.k_scale, a.k_signs, a.cache_dtype, a.k_unit};
  const Cache values{static_cast<uint8_t*>(a.v_cache), a.v_scale, nullptr, a.cache_dtype, a.v_unit};
  const bool plain = a.cache_dtype == Cache::code_of(T{});
  const RowRange range(a.rows, a.task_rows, task);
  const int64_t d = a.head_dim;
  const Gain q_norm{a.q_norm, a.wide_norms}, k_norm{a.k_norm, a.wide_norms},
      v_norm{a.v_norm, a.wide_norms};
  fetch_slot<T>(a, range.begin);
  for (int64_t r = range.begin; r < range.end; ++r) {
    if (r + 1 < range.end) fetch_slot<T>(a, r + 1);
    const Turn turn(a.cos_sin, a.positions, r, a.rotary_dim);
    T* q_out = row_at<T>(a.q_out, r, a.heads * d);
    const T* q = row_at<T>(a.q, r, a.q_stride);
    each_heads(a.heads, kHeads, [&](int64_t h, int64_t heads) {
      place_heads(q_out + h * d, d, q + h * d, heads, q_norm, a.eps, turn, d);
    });
    const int64_t block = a.slot_mapping[r] / a.block_size;
    const int64_t offset = a.slot_mapping[r] % a.block_size;
    const int64_t slot = block * a.block_stride + offset * d;
    const T* k = row_at<T>(a.k, r, a.k_stride);
    const T* v = row_at<T>(a.v, r, a.v_stride);
    const int64_t fit = kTurned / d;
    each_heads(a.kv_heads, plain || fit > kHeads ? kHeads : fit, [&](int64_t first, int64_t heads) {
      const auto put = [&](const Cache& to, const T* x) {
        for (int64_t h = first; h < first + heads; ++h, x += d) {
          to.put(slot + h * a.head_stride, (block * a.kv_heads + h) * a.block_size + offset, x, d);
        }
      };
      const auto put_normed = [&](const Cache& to, const T* x, const Gain& gain, const Turn& t) {
        if (plain) {
          T* const y = reinterpret_cast<T*>(to.elements) + slot + first * a.head_stride;
          return place_heads(y, a.head_stride, x, heads, gain, a.eps, t, d);
        }
        T turned[kTurned];
        place_heads(turned, d, x, heads, gain, a.eps, t, d);
        put(to, turned);
      };
      put_normed(keys, k + first * d, k_norm, turn);
      if (a.v_cache == nullptr) return;
      if (a.v_norm == nullptr) return put(values, v + first * d);
      put_normed(values, v + first * d, v_norm, Turn(nullptr, nullptr, r, 0));
    });
  }
}

template void rope_kv_write<float>(const RopeKvArgs&, int64_t);
template void rope_kv_write<bf16>(const RopeKvArgs&, int64_t);
template void rope_kv_write<f16>(const RopeKvArgs&, int64_t);

}  // namespace quire::QUIRE_ISA
