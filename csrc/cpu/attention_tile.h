// A tile of keys, and the running result of a tile of query rows; for the kernels on vectors.
#pragma once

#include "attention_parts.h"
#include "simd_math.h"

namespace quire::QUIRE_ISA {
namespace {

template <class T>
constexpr bool kIsBfloat16 = false;
template <>
constexpr bool kIsBfloat16<bf16> = true;
template <class T>
constexpr bool kIsInt8 = false;
template <>
constexpr bool kIsInt8<int8_t> = true;

template <class T>
constexpr bool kIsFloat = false;
template <>
constexpr bool kIsFloat<float> = true;

constexpr int kKeys = kAttentionKeys;
constexpr int kWidth = kAttentionHeadDim;
constexpr int kGroup = static_cast<int>(kLanes);  // keys whose dot products are reduced together
static_assert(kKeys % (2 * kLanes) == 0 && kAttentionPartition % kKeys == 0);

// A partial result of softmax(s) v, s in units of log 2: acc / sum, both times 2^-top.
struct State {
  float top[kAttentionRows];
  float sum[kAttentionRows];
  alignas(64) float acc[kAttentionRows * kWidth];
};

// Where the keys and values of one key tile lie; keys outside [first, last) stand for any key.
template <class T>
struct KeyTile {
  const T* k[kKeys];
  const T* v[kKeys];
  float k_scale[kKeys], v_scale[kKeys];  // of int8
  int first, last;
};

template <class T>
void find_keys(const AttentionArgs& a, const int32_t* table, int64_t head, int64_t start,
               int64_t begin, int64_t end, KeyTile<T>& keys) {
  keys.first = static_cast<int>(begin > start ? begin - start : 0);
  keys.last = static_cast<int>(end - start < kKeys ? end - start : kKeys);
  const int shift = __builtin_ctzll(static_cast<uint64_t>(a.block_size));
  const int64_t offset = head * a.block_size * a.head_dim;
  for (int j = 0; j < kKeys; ++j) {
    const int inside = j < keys.first ? keys.first : j < keys.last ? j : keys.last - 1;
    const int64_t position = start + inside;
    const int64_t block = table[position >> shift];
    const int64_t in_block = position & (a.block_size - 1);
    const int64_t at = offset + in_block * a.head_dim;
    keys.k[j] = static_cast<const T*>(a.k) + block * a.k_block_stride + at;
    keys.v[j] = static_cast<const T*>(a.v) + block * a.v_block_stride + at;
    if constexpr (kIsInt8<T>) {
      const int64_t slot = (block * a.kv_heads + head) * a.block_size + in_block;
      keys.k_scale[j] = as_float(a.k_scale[slot]);
      keys.v_scale[j] = as_float(a.v_scale[slot]);
    }
  }
}

// Asks for rows of the tile that comes next, a few at a time between the steps of the present one,
// into the second cache: two tiles are more than the first holds.
template <class T>
inline void fetch(const T* const* rows, int count, int64_t dim) {
  const int64_t bytes = dim * static_cast<int64_t>(sizeof(T));
  for (int i = 0; i < count; ++i) {
    const char* row = reinterpret_cast<const char*>(rows[i]);
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
