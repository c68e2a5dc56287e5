// Where the keys and values of one tile lie in the paged cache, and fetching them ahead of time; for
// the kernel on AMX tiles.
#pragma once

#include <immintrin.h>

#include "attention.h"
#include "simd.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int kMaxBlocks = kAttentionKeys / 8;

// One tile of keys: where its blocks lie, null for those outside [first, last). T is bf16 or int8_t.
template <class T>
struct Keys {
  const T* k[kMaxBlocks];
  const T* v[kMaxBlocks];
  const bf16 *k_scales[kMaxBlocks], *v_scales[kMaxBlocks];  // of int8
  int first, last;
  int shift;  // log2 of the block size
  int64_t dim;

  int at(int j) const { return j & ((1 << shift) - 1); }
  const T* key(int j) const { return k[j >> shift] + at(j) * dim; }
  const T* value(int j) const { return v[j >> shift] + at(j) * dim; }
  bool has(int j) const { return j >= first && j < last; }
  float k_scale(int j) const { return has(j) ? as_float(k_scales[j >> shift][at(j)]) : 0.0f; }
  float v_scale(int j) const { return has(j) ? as_float(v_scales[j >> shift][at(j)]) : 0.0f; }
};

template <class T>
inline Keys<T> find_keys(const AttentionArgs& a, const int32_t* table, int64_t head, int64_t start,
                         int64_t begin, int64_t end) {
  Keys<T> keys;
  keys.first = static_cast<int>(begin > start ? begin - start : 0);
  keys.last = static_cast<int>(end - start < kAttentionKeys ? end - start : kAttentionKeys);
  keys.shift = __builtin_ctzll(static_cast<uint64_t>(a.block_size));
  keys.dim = a.head_dim;
  const int64_t offset = head * a.block_size * a.head_dim;
  const int32_t* blocks = table + (start >> keys.shift);
  for (int i = 0; i < kAttentionKeys >> keys.shift; ++i) {
    const bool inside = (i + 1) << keys.shift > keys.first && i << keys.shift < keys.last;
    keys.k[i] = keys.v[i] = nullptr;
    if (inside) {
      keys.k[i] = static_cast<const T*>(a.k) + blocks[i] * a.k_block_stride + offset;
      keys.v[i] = static_cast<const T*>(a.v) + blocks[i] * a.v_block_stride + offset;
      if constexpr (sizeof(T) == 1) {
        const int64_t scales = (blocks[i] * a.kv_heads + head) * a.block_size;
        keys.k_scales[i] = a.k_scale + scales;
        keys.v_scales[i] = a.v_scale + scales;
      }
    }
  }
  return keys;
}

// The blocks of the tile that comes next, asked for a few lines at a time between the steps of the
// present one: all at once would fill the line buffers and stop the work that they should overlap.
struct Ahead {
  const char* blocks[2 * kMaxBlocks];
  int count = 0, block = 0;
  int64_t at = 0, size;  // bytes of a block

  template <class T>
  Ahead(const Keys<T>& next) : size((next.dim << next.shift) * static_cast<int64_t>(sizeof(T))) {
    for (int i = 0; i < kAttentionKeys >> next.shift; ++i) {
      if (next.k[i] == nullptr) continue;
      blocks[count++] = reinterpret_cast<const char*>(next.k[i]);
      if constexpr (sizeof(T) == 1) {
        _mm_prefetch(next.k_scales[i], _MM_HINT_T1);
        _mm_prefetch(next.v_scales[i], _MM_HINT_T1);
      }
    }
    for (int i = 0; i < kAttentionKeys >> next.shift; ++i) {
      if (next.v[i] != nullptr) blocks[count++] = reinterpret_cast<const char*>(next.v[i]);
    }
  }

  void fetch(int lines) {
    if (block == count) return;
    for (int i = 0; i < lines; ++i, at += 64) _mm_prefetch(blocks[block] + at, _MM_HINT_T1);
    if (at >= size) {
      at = 0;
      ++block;
    }
  }
};
constexpr int kLines = 8;  // a few; more than the smallest blocks have, which does no harm

}  // namespace
}  // namespace quire::QUIRE_ISA
