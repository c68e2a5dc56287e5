// Where the keys and values of one tile lie in the paged cache, and fetching them ahead of time; for
// the kernel on AMX tiles.
#pragma once

#include <immintrin.h>

#include "attention.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int kMaxBlocks = kAttentionKeys / 8;

// One tile of keys: where its blocks lie, null for those outside [first, last).
struct Keys {
  const bf16* k[kMaxBlocks];
  const bf16* v[kMaxBlocks];
  int first, last;
  int shift;  // log2 of the block size
  int64_t dim;

  const bf16* key(int j) const { return k[j >> shift] + (j & ((1 << shift) - 1)) * dim; }
  const bf16* value(int j) const { return v[j >> shift] + (j & ((1 << shift) - 1)) * dim; }
  bool has(int j) const { return j >= first && j < last; }
};

inline Keys find_keys(const AttentionArgs& a, const int32_t* table, int64_t head, int64_t start,
               int64_t begin, int64_t end) {
  Keys keys;
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
      keys.k[i] = static_cast<const bf16*>(a.k) + blocks[i] * a.k_block_stride + offset;
      keys.v[i] = static_cast<const bf16*>(a.v) + blocks[i] * a.v_block_stride + offset;
    }
  }
  return keys;
}

// The blocks of the tile that comes next, asked for a few lines at a time between the steps of the
// present one: all at once would fill the line buffers and stop the work that they should overlap.
struct Ahead {
  const bf16* blocks[2 * kMaxBlocks];
  int count = 0, block = 0;
  int64_t at = 0, size;  // elements of a block

  Ahead(const Keys& next) : size(next.dim << next.shift) {
    for (int i = 0; i < kAttentionKeys >> next.shift; ++i) {
      if (next.k[i] != nullptr) blocks[count++] = next.k[i];
    }
    for (int i = 0; i < kAttentionKeys >> next.shift; ++i) {
      if (next.v[i] != nullptr) blocks[count++] = next.v[i];
    }
  }

  void fetch(int lines) {
    if (block == count) return;
    for (int i = 0; i < lines; ++i, at += 32) _mm_prefetch(blocks[block] + at, _MM_HINT_T1);
    if (at >= size) {
      at = 0;
      ++block;
    }
  }
};
constexpr int kLines = 8;  // a few; divides the lines of any block

}  // namespace
}  // namespace quire::QUIRE_ISA
