// The addresses of a tile's keys and values in the paged cache, and their prefetching.
#pragma once

#include "attention.h"
#include "int4.h"
#include "simd_float8.h"
#include "simd_math.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int kKeys = kAttentionKeys;
constexpr int kMaxBlocks = kKeys / 8;
constexpr float kLog2E = 1.44269504f;

// For functions that run once per tile. Inlined, they would be compiled for each dtype and row count.
#define QUIRE_ONCE __attribute__((noinline))

// Turns a product s of query and key into a score in units of log 2: scale · s, or for capped scores
// cap · tanh(scale · s).
struct Scaling {
  float scale, cap;

  explicit Scaling(const AttentionArgs& a)
      : scale(a.softcap > 0.0f ? a.scale / a.softcap : a.scale * kLog2E), cap(a.softcap * kLog2E) {}
};

// A row's sum of weights, all times 2^-top, with the sink of its head if there are sinks.
inline float with_sink(const AttentionArgs& a, int64_t head, float sum, float top) {
  if (a.sinks == nullptr) return sum;
  const float above = a.sinks[head] * kLog2E - top;
  // Beyond 2^120 the row is as good as 0, and the sum stays finite.
  return sum + largest(exp2(broadcast(above > 120.0f ? 120.0f : above)));
}

// One tile of keys: addresses of its blocks, null outside [first, last). All zero is no tile. T is the
// cache's dtype. Heads follow each other within a block: `set_head` selects one.
template <class T>
struct Keys {
  const T* k[kMaxBlocks];
  const T* v[kMaxBlocks];
  const void *k_scales[kMaxBlocks], *v_scales[kMaxBlocks];  // if the cache has scales
  const uint8_t* k_signs[kMaxBlocks];                       // if packed
  int first, last;
  int shift;  // log2 of the block size
  int64_t dim;
  int64_t row;     // from token to token: `dim`, or half of it if packed
  int64_t offset;  // from `k` and `v` to the selected head

  int at(int j) const { return j & ((1 << shift) - 1); }
  // Null if there is no block.
  const T* key(int j) const { return has_block(j) ? k[j >> shift] + offset + at(j) * row : nullptr; }
  const uint8_t* signs(int j) const { return k_signs[j >> shift] + (offset + at(j) * row) / 4; }
  const T* value(int j) const { return v[j >> shift] + offset + at(j) * row; }
  bool packed() const { return row != dim; }
  bool has(int j) const { return j >= first && j < last; }
  bool has_block(int j) const { return k[j >> shift] != nullptr; }
  void set_head(int head) { offset = head * (row << shift); }
};

template <class T>
QUIRE_ONCE Keys<T> find_keys(const AttentionArgs& a, const int32_t* table, int64_t head,
                             int64_t start, int64_t begin, int64_t end) {
  Keys<T> keys{};
  keys.first = static_cast<int>(begin > start ? begin - start : 0);
  keys.last = static_cast<int>(end - start < kKeys ? end - start : kKeys);
  keys.shift = __builtin_ctzll(static_cast<uint64_t>(a.block_size));
  keys.dim = a.head_dim;
  keys.row = a.head_dim >> a.packed;
  const int64_t offset = head * a.block_size * keys.row;
  const int32_t* blocks = table + (start >> keys.shift);
  for (int i = 0; i < kKeys >> keys.shift; ++i) {
    const bool inside = (i + 1) << keys.shift > keys.first && i << keys.shift < keys.last;
    if (!inside) continue;
    keys.k[i] = static_cast<const T*>(a.k) + (blocks[i] * a.k_block_stride >> a.packed) + offset;
    keys.v[i] = static_cast<const T*>(a.v) + (blocks[i] * a.v_block_stride >> a.packed) + offset;
    if (sizeof(T) == 1 && a.k_scale != nullptr) {
      const int64_t slot = (blocks[i] * a.kv_heads + head) * a.block_size, at = 2 * slot >> a.packed;
      keys.k_scales[i] = static_cast<const uint8_t*>(a.k_scale) + at;
      keys.v_scales[i] = static_cast<const uint8_t*>(a.v_scale) + at;
      if (a.packed) keys.k_signs[i] = a.k_signs + slot * a.head_dim / 8;
    }
  }
  return keys;
}

// A packed tile as int8, in whole blocks.
struct Unpacked {
  alignas(64) int8_t room[2][kKeys * kAttentionHeadDim];
  Keys<int8_t> keys;

  explicit Unpacked(const Keys<int8_t>& packed) : keys(packed) {
    keys.row = keys.dim;
    keys.offset = 0;
  }

  // The blocks of tokens [begin, end) of the selected head, keys or values.
  QUIRE_ONCE void read(const Keys<int8_t>& packed, bool values, int begin, int end) {
    const int8_t *const *from = values ? packed.v : packed.k;
    const int8_t** const to = values ? keys.v : keys.k;
    int8_t* at = room[values];
    for (int i = begin >> keys.shift; i << keys.shift < end; ++i, at += keys.dim << keys.shift) {
      if (from[i] == nullptr) continue;
      const uint8_t* const signs = values ? nullptr : packed.k_signs[i] + packed.offset / 4;
      unpack(reinterpret_cast<const uint8_t*>(from[i]) + packed.offset, signs,
             packed.row << keys.shift, at);
      to[i] = at;
    }
  }
};

// The scales of a tile's keys and values, 0 for those outside.
struct Scales {
  alignas(64) float k[kKeys + kLanes], v[kKeys + kLanes];  // whole vectors are written

  template <class T>
  QUIRE_ONCE void read(const Keys<T>& keys) {
    const int size = 1 << keys.shift;
    for (int i = 0; i < kKeys >> keys.shift; ++i) {
      if (keys.k[i] == nullptr) continue;
      const int64_t first = keys.offset / keys.row;
      if (keys.packed()) {
        const auto* const from_k = static_cast<const uint8_t*>(keys.k_scales[i]) + first;
        const auto* const from_v = static_cast<const uint8_t*>(keys.v_scales[i]) + first;
        for (int at = 0; at < size; ++at) k[i * size + at] = scale_value(from_k[at]);
        for (int at = 0; at < size; ++at) v[i * size + at] = scale_value(from_v[at]);
        continue;
      }
      for (int at = 0; at < size; at += static_cast<int>(kLanes)) {
        const int64_t n = size - at;
        const bf16* const from_k = static_cast<const bf16*>(keys.k_scales[i]) + first + at;
        const bf16* const from_v = static_cast<const bf16*>(keys.v_scales[i]) + first + at;
        store(k + i * size + at, n < kLanes ? load(from_k, n) : load(from_k));
        store(v + i * size + at, n < kLanes ? load(from_v, n) : load(from_v));
      }
    }
    for (int j = 0; j < keys.first; ++j) k[j] = v[j] = 0.0f;
    for (int j = keys.last; j < kKeys; ++j) k[j] = v[j] = 0.0f;
  }
};

constexpr int kLines = 8;  // more than the smallest blocks have, which is harmless
constexpr int64_t kWholeTile = 1ll << 40;  // a lead that prefetches the next tile

// Prefetches keys and values `lead` bytes ahead into the L2 cache, a few lines between the steps of a
// tile. All at once would fill the line buffers and stop the work that should overlap. Heads that are
// computed together are one run in every block.
struct Ahead {
  struct Run {
    const char* at;
    int64_t bytes;
  };
  Run runs[6 * kMaxBlocks];  // keys, signs and values of two tiles
  int count = 0, run = 0;
  int64_t at = 0;
  int64_t left;  // bytes to prefetch
  int pace;      // lines of four keys, with their signs

  // Prefetches the beginning of the first tile, `keys`.
  template <class T>
  Ahead(const Keys<T>& keys, int heads, int64_t lead)
      : left(lead),
        pace(static_cast<int>((4 * bytes_of(keys) * (keys.packed() ? 5 : 4) / 4 + 63) / 64)) {
    add(keys, heads);
  }

  // Begins a tile: `keys` are in use, and `next`, which may be none, follows.
  template <class T>
  Ahead(const Keys<T>& keys, const Keys<T>& next, int heads, int64_t lead)
      : Ahead(keys, heads, lead) {
    const int in_use = count;
    add(next, heads);
    if (lead == kWholeTile) {
      run = in_use;
      return;
    }
    left = 0;
    for (int i = 0; i < in_use; ++i) left += runs[i].bytes;
    for (at = lead; run < count && at >= runs[run].bytes; ++run) at -= runs[run].bytes;
  }

  template <class T>
  static int64_t bytes_of(const Keys<T>& keys) {  // of a key
    return keys.row * static_cast<int64_t>(sizeof(T));
  }

  template <class T>
  QUIRE_ONCE void add(const Keys<T>& keys, int heads) {
    const int64_t bytes = heads * (bytes_of(keys) << keys.shift);
    for (int i = 0; i < kMaxBlocks; ++i) {
      if (keys.k[i] == nullptr) continue;
      runs[count++] = {reinterpret_cast<const char*>(keys.k[i]), bytes};
      if (sizeof(T) != 1 || keys.k_scales[i] == nullptr) continue;
      if (keys.packed()) {
        runs[count++] = {reinterpret_cast<const char*>(keys.k_signs[i]), bytes / 4};
      }
      for (int64_t n = 0; n < 2 * heads << keys.shift >> keys.packed(); n += 64) {
        __builtin_prefetch(static_cast<const char*>(keys.k_scales[i]) + n, 0, 2);
        __builtin_prefetch(static_cast<const char*>(keys.v_scales[i]) + n, 0, 2);
      }
    }
    for (int i = 0; i < kMaxBlocks; ++i) {
      if (keys.v[i] != nullptr) runs[count++] = {reinterpret_cast<const char*>(keys.v[i]), bytes};
    }
  }

  void fetch(int lines) {
    if (run >= count || left <= 0) return;
    for (int i = 0; i < lines; ++i, at += 64) __builtin_prefetch(runs[run].at + at, 0, 2);
    left -= 64 * lines;
    if (at >= runs[run].bytes) {
      at = 0;
      ++run;
    }
  }
  void fetch_rest() {
    while (run < count && left > 0) fetch(kLines);
  }
};

}  // namespace
}  // namespace quire::QUIRE_ISA
