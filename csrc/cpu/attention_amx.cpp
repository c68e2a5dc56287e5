// Paged attention on AMX tiles, in bfloat16 (which holds int8 exactly); same tasks, tiles and promises as attention.cpp.
//
// A tile register holds 16 rows of 64 bytes. Per 16 query rows and key tile of kAttentionKeys:
//
//   scores^T [keys, rows]  = K [keys, dim] x q^T     K straight from the cache, q repacked once
//   weights  [rows, keys]  = exp2(...)               row maxima and sums are lane-wise; then transposed
//   acc      [rows, dim]  += weights x V [keys, dim] V repacked: pairs of keys interleaved
//
// The interleaving leaves every 32 columns of V in the order of kColumnOrder, undone at the end.
// An element of a product depends on its own row and column only, and keys a row may not see have
// weight 0, so that a row's result has the same bits whatever shares its tiles.
#include "attention_parts.h"

#if defined(QUIRE_TILES)

#include "attention_keys.h"
#include "simd_math.h"

namespace quire::QUIRE_ISA {

namespace {

constexpr int kSide = 16;                            // rows, and 4-byte columns, of a tile register
constexpr int kCells = kSide * kSide;                // 4-byte elements of a tile register
constexpr int kSlabs = kAttentionRows / kSide;       // of query rows
constexpr int kKeyTiles = kAttentionKeys / kSide;    // of 16 keys, as rows of K
constexpr int kKeySteps = kAttentionKeys / 32;       // of 32 keys, as the inner dimension
constexpr int kDimSteps = kAttentionHeadDim / 32;    // of 32 columns, as the inner dimension
constexpr int kDimTiles = kAttentionHeadDim / kSide;
constexpr float kLog2E = 1.44269504f;
constexpr float kNothing = -1e30f;  // `top` of a row that has seen no key

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

void configure_tiles() {
  const TileConfig config;
  __asm__ volatile("" : : "r"(&config) : "memory");  // GCC 12 may drop the stores to `config`
  _tile_loadconfig(&config);
}

// A partial result: acc / sum, both times 2^-top. acc lies in whole tiles.
struct State {
  alignas(64) float top[kAttentionRows];
  alignas(64) float sum[kAttentionRows];
  alignas(64) float acc[kSlabs][kDimTiles][kCells];
  bool empty;
};

struct Work {
  int rows, slabs, group;
  int dim_steps, dim_tiles;
  alignas(64) int32_t at[kAttentionRows];  // position of each row
  alignas(64) uint32_t q[kSlabs][kDimSteps][kCells];        // q^T: pairs of columns down, rows across
  alignas(64) float scores[kSlabs][kAttentionKeys][kSide];  // transposed
  alignas(64) uint32_t weights[kSlabs][kKeySteps][kCells];  // rows down, pairs of keys across
  alignas(64) uint32_t v[kKeySteps][kDimTiles][kCells];     // pairs of keys down, columns across
  alignas(64) bf16 k[2][kSide * kAttentionHeadDim];         // 16 keys in a row, as bfloat16
};

// Transposes 16 x 16 elements of 4 bytes.
inline void transpose(const __m512i* in, uint32_t* out) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  // b[4i + c], 128-bit part p: column 4p + c of rows 4i .. 4i + 3
  for (int c = 0; c < 4; ++c) {
    const __m512i x = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88);
    const __m512i y = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
    const __m512i z = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
    const __m512i w = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
    _mm512_store_si512(out + 16 * c, _mm512_shuffle_i32x4(x, z, 0x88));
    _mm512_store_si512(out + 16 * (4 + c), _mm512_shuffle_i32x4(y, w, 0x88));
    _mm512_store_si512(out + 16 * (8 + c), _mm512_shuffle_i32x4(x, z, 0xdd));
    _mm512_store_si512(out + 16 * (12 + c), _mm512_shuffle_i32x4(y, w, 0xdd));
  }
}

int64_t row_offset(const Work& w, int r, int64_t stride, int64_t dim) {
  return r / w.group * stride + r % w.group * dim;
}

void pack_queries(const AttentionArgs& a, int64_t offset, Work& w) {
  const bf16* q = static_cast<const bf16*>(a.q) + offset;
  for (int slab = 0; slab < w.slabs; ++slab) {
    for (int step = 0; step < w.dim_steps; ++step) {
      __m512i rows[kSide];
      for (int i = 0; i < kSide; ++i) {
        const int r = slab * kSide + i;
        rows[i] = r < w.rows ? _mm512_loadu_si512(q + row_offset(w, r, a.q_stride, a.head_dim) +
                                                  32 * step)
                             : _mm512_setzero_si512();
      }
      transpose(rows, w.q[slab][step]);
    }
  }
}

__m512i load_bf16(const bf16* p) { return _mm512_loadu_si512(p); }
__m512i load_bf16(const int8_t* p) {
  const Vec low = load(p), high = load(p + kLanes);
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// 16 keys as a tile: in place, or copied together where blocks are shorter.
const bf16* key_rows(const Keys<int8_t>& keys, int tile, bf16* room) {
  for (int i = 0; i < kSide; ++i) {
    const int j = tile * kSide + i;
    if (!keys.has(j)) continue;  // whose scores are hidden
    for (int64_t d = 0; d < keys.dim; d += 32) {
      _mm512_store_si512(room + i * keys.dim + d, load_bf16(keys.key(j) + d));
    }
  }
  return room;
}
const bf16* key_rows(const Keys<bf16>& keys, int tile, bf16* room) {
  const int j = tile * kSide;
  if (keys.shift >= 4) return keys.key(j);
  for (int half = 0; half < 2; ++half) {
    const bf16* block = keys.k[2 * tile + half];
    if (block != nullptr) {
      __builtin_memcpy(room + half * 8 * keys.dim, block, static_cast<uint64_t>(16 * keys.dim));
    }
  }
  return room;
}

// Scores of KeyTiles x Slabs tiles (1 or 2 each).
template <int KeyTiles, int Slabs>
void score_tiles(const bf16* k0, const bf16* k1, int64_t dim, int steps,
                 const uint32_t (*q0)[kCells], const uint32_t (*q1)[kCells], float* s00, float* s10,
                 float* s01, float* s11, Ahead& ahead) {
  _tile_zero(0);
  if constexpr (KeyTiles == 2) _tile_zero(1);
  if constexpr (Slabs == 2) _tile_zero(2);
  if constexpr (KeyTiles == 2 && Slabs == 2) _tile_zero(3);
  const int64_t stride = 2 * dim;
  for (int step = 0; step < steps; ++step) {
    ahead.fetch(kLines);
    _tile_loadd(4, k0 + 32 * step, stride);
    _tile_loadd(6, q0[step], 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (KeyTiles == 2) {
      _tile_loadd(5, k1 + 32 * step, stride);
      _tile_dpbf16ps(1, 5, 6);
    }
    if constexpr (Slabs == 2) {
      _tile_loadd(7, q1[step], 64);
      _tile_dpbf16ps(2, 4, 7);
      if constexpr (KeyTiles == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, s00, 64);
  if constexpr (KeyTiles == 2) _tile_stored(1, s10, 64);
  if constexpr (Slabs == 2) _tile_stored(2, s01, 64);
  if constexpr (KeyTiles == 2 && Slabs == 2) _tile_stored(3, s11, 64);
}

template <int KeyTiles, class T>
void score(Work& w, const Keys<T>& keys, int tile, Ahead& ahead) {
  const bf16* k0 = key_rows(keys, tile, w.k[0]);
  const bf16* k1 = KeyTiles == 2 ? key_rows(keys, tile + 1, w.k[1]) : k0;
  const int j = tile * kSide;
  const int next = KeyTiles == 2 ? j + kSide : j;
  int slab = 0;
  for (; slab + 2 <= w.slabs; slab += 2) {
    score_tiles<KeyTiles, 2>(k0, k1, keys.dim, w.dim_steps, w.q[slab], w.q[slab + 1],
                             w.scores[slab][j], w.scores[slab][next], w.scores[slab + 1][j],
                             w.scores[slab + 1][next], ahead);
  }
  if (slab < w.slabs) {
    score_tiles<KeyTiles, 1>(k0, k1, keys.dim, w.dim_steps, w.q[slab], w.q[slab], w.scores[slab][j],
                             w.scores[slab][next], nullptr, nullptr, ahead);
  }
}

alignas(64) constexpr bf16 kZeros[kAttentionHeadDim] = {};

// Multiplies the scores of a slab's keys [j, end) by the scales of the keys.
void scale_scores(Work& w, int slab, const Keys<int8_t>& keys, int j, int end) {
  for (; j < end; ++j) {
    float* s = w.scores[slab][j];
    store(s, mul(load(s), broadcast(keys.k_scale(j))));
  }
}

// Interleaves the values of keys 2i and 2i + 1 of a step of 32; keys that are not there are 0.
template <class T>
void pack_values(const Work& w, const Keys<T>& keys, int step, uint32_t (*v)[kCells], Ahead& ahead) {
  for (int i = 0; i < kSide; ++i) {
    if (i % 2 == 0) ahead.fetch(kLines);
    const int j = 32 * step + 2 * i;
    const T* zeros = reinterpret_cast<const T*>(kZeros);
    const T* even = keys.has(j) ? keys.value(j) : zeros;
    const T* odd = keys.has(j + 1) ? keys.value(j + 1) : zeros;
    for (int d = 0; d < w.dim_steps; ++d) {
      const __m512i x = load_bf16(even + 32 * d), y = load_bf16(odd + 32 * d);
      _mm512_store_si512(v[2 * d] + kSide * i, _mm512_unpacklo_epi16(x, y));
      _mm512_store_si512(v[2 * d + 1] + kSide * i, _mm512_unpackhi_epi16(x, y));
    }
  }
}

// Hides the keys [j, end) of a slab that its rows may not see. True if that is any.
template <class T>
void hide(Work& w, int slab, int64_t start, int64_t window, const Keys<T>& keys, int j, int end) {
  const __m512i high = _mm512_sub_epi32(_mm512_load_si512(w.at + slab * kSide),
                                        _mm512_set1_epi32(static_cast<int>(start)));
  const int reach = window > 0 && window < 1 << 30 ? static_cast<int>(window) : 1 << 30;
  const __m512i low = _mm512_sub_epi32(high, _mm512_set1_epi32(reach));
  const int lowest = _mm512_reduce_min_epi32(high), highest = _mm512_reduce_max_epi32(low);
  const int computed = (keys.last + kSide - 1) / kSide * kSide;
  const int begun = keys.first / kSide * kSide;
  const __m512 hidden = _mm512_set1_ps(-__builtin_inff());
  for (; j < end; ++j) {
    if (j <= lowest && j > highest && j >= begun && j < computed) continue;
    const __m512i key = _mm512_set1_epi32(j);
    const __mmask16 seen =
        _mm512_cmple_epi32_mask(key, high) & _mm512_cmpgt_epi32_mask(key, low);
    float* s = w.scores[slab][j];
    _mm512_store_ps(s, _mm512_mask_mov_ps(hidden, seen, _mm512_load_ps(s)));
  }
}

// Scores of one slab to weights, over keys of steps [step, end).
template <class T>
void weigh(Work& w, int slab, const Keys<T>& keys, State& state, float scale, int step, int end,
           Ahead& ahead) {
  const float(*scores)[kSide] = w.scores[slab];
  Vec m0 = broadcast(-__builtin_inff()), m1 = m0, m2 = m0, m3 = m0;
  for (int j = 32 * step; j < 32 * end; j += 4) {
    m0 = max(load(scores[j]), m0);
    m1 = max(load(scores[j + 1]), m1);
    m2 = max(load(scores[j + 2]), m2);
    m3 = max(load(scores[j + 3]), m3);
  }
  const Vec s = broadcast(scale);
  const Vec old_top = load(state.top + slab * kSide);
  const Vec new_top = max(mul(max(max(m0, m1), max(m2, m3)), s), old_top);
  const Vec shift = sub(zero(), new_top);
  const __m512i half = _mm512_set1_epi32(0x8000);
  Vec even = zero(), odd = zero();
  for (; step < end; ++step) {
    __m512i pairs[kSide];
    for (int i = 0; i < kSide; ++i) {
      if (i % 2 == 0) ahead.fetch(kLines);
      const int j = 32 * step + 2 * i;
      Vec x = exp2(fma(load(scores[j]), s, shift));
      Vec y = exp2(fma(load(scores[j + 1]), s, shift));
      even = add(even, x);
      odd = add(odd, y);
      if constexpr (sizeof(T) == 1) {
        x = mul(x, broadcast(keys.v_scale(j)));
        y = mul(y, broadcast(keys.v_scale(j + 1)));
      }
      // Rounded to bfloat16, ties up: weights are not negative, and a NaN stays one.
      const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(x), half), 16);
      const __m512i high = _mm512_add_epi32(_mm512_castps_si512(y), half);
      pairs[i] = _mm512_mask_blend_epi16(0xaaaaaaaa, low, high);
    }
    transpose(pairs, w.weights[slab][step]);
  }
  const Vec keep = exp2(sub(old_top, new_top));
  store(state.top + slab * kSide, new_top);
  store(state.sum + slab * kSide,
        add(mul(load(state.sum + slab * kSide), keep), add(even, odd)));
  if (state.empty) return;
  unsigned changed = _mm512_cmp_ps_mask(keep, broadcast(1.0f), _CMP_NEQ_UQ);
  alignas(64) float factor[kSide];
  store(factor, keep);
  for (; changed != 0; changed &= changed - 1) {
    const int i = __builtin_ctz(changed);
    for (int d = 0; d < w.dim_tiles; ++d) {
      float* acc = state.acc[slab][d] + i * kSide;
      store(acc, mul(load(acc), broadcast(factor[i])));
    }
  }
}

template <int Slabs>
void add_values(Work& w, State& state, int slab, int step, int end,
                const uint32_t (*v)[kDimTiles][kCells], Ahead& ahead) {
  for (int d = 0; d < w.dim_tiles; d += 2) {
    float* acc = state.acc[slab][d];
    float* below = state.acc[slab + Slabs - 1][d];
    if (state.empty) {
      _tile_zero(0);
      _tile_zero(1);
      if constexpr (Slabs == 2) {
        _tile_zero(2);
        _tile_zero(3);
      }
    } else {
      _tile_loadd(0, acc, 64);
      _tile_loadd(1, acc + kCells, 64);
      if constexpr (Slabs == 2) {
        _tile_loadd(2, below, 64);
        _tile_loadd(3, below + kCells, 64);
      }
    }
    for (int i = step; i < end; ++i) {
      ahead.fetch(kLines);
      ahead.fetch(kLines);
      _tile_loadd(4, w.weights[slab][i], 64);
      _tile_loadd(6, v[i - step][d], 64);
      _tile_loadd(7, v[i - step][d + 1], 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (Slabs == 2) {
        _tile_loadd(5, w.weights[slab + 1][i], 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, acc, 64);
    _tile_stored(1, acc + kCells, 64);
    if constexpr (Slabs == 2) {
      _tile_stored(2, below, 64);
      _tile_stored(3, below + kCells, 64);
    }
  }
}

void clear(const Work& w, State& state) {
  for (int i = 0; i < w.slabs * kSide; i += kSide) {
    store(state.top + i, broadcast(kNothing));
    store(state.sum + i, zero());
  }
  state.empty = true;
}

template <class T>
void attend(const AttentionArgs& a, Work& w, const Keys<T>& keys, const Keys<T>& next,
            int64_t start, State& state) {
  Ahead ahead(next);
  const int last_tile = (keys.last + kSide - 1) / kSide;
  int tile = keys.first / kSide;
  const int step = tile / 2, end = (last_tile + 1) / 2;
  for (; tile + 2 <= last_tile; tile += 2) score<2>(w, keys, tile, ahead);
  if (tile < last_tile) score<1>(w, keys, tile, ahead);
  for (int slab = 0; slab < w.slabs; ++slab) {
    if constexpr (sizeof(T) == 1) scale_scores(w, slab, keys, 32 * step, 32 * end);
    hide(w, slab, start, a.window, keys, 32 * step, 32 * end);
    weigh(w, slab, keys, state, a.scale * kLog2E, step, end, ahead);
  }
  if (w.slabs == 1) {  // one step's values at a time stay in the first cache; the sums are the same
    for (int i = step; i < end; ++i, state.empty = false) {
      pack_values(w, keys, i, w.v[0], ahead);
      add_values<1>(w, state, 0, i, i + 1, w.v, ahead);
    }
  } else {
    for (int i = step; i < end; ++i) pack_values(w, keys, i, w.v[i - step], ahead);
    int slab = 0;
    for (; slab + 2 <= w.slabs; slab += 2) add_values<2>(w, state, slab, step, end, w.v, ahead);
    if (slab < w.slabs) add_values<1>(w, state, slab, step, end, w.v, ahead);
  }
  while (ahead.block != ahead.count) ahead.fetch(kLines);
  state.empty = false;
}

// Adds a partial result to the total. An empty one on either side changes nothing.
void merge(const Work& w, State& total, const State& part) {
  for (int slab = 0; slab < w.slabs; ++slab) {
    const int r = slab * kSide;
    const Vec old_top = load(total.top + r), top_ = load(part.top + r);
    const Vec new_top = max(old_top, top_);
    const Vec old_scale = exp2(sub(old_top, new_top)), scale = exp2(sub(top_, new_top));
    store(total.top + r, new_top);
    store(total.sum + r,
          add(mul(load(total.sum + r), old_scale), mul(load(part.sum + r), scale)));
    alignas(64) float old_factor[kSide], factor[kSide];
    store(old_factor, old_scale);
    store(factor, scale);
    for (int d = 0; d < w.dim_tiles; ++d) {
      for (int i = 0; i < kSide; ++i) {
        float* acc = total.acc[slab][d] + i * kSide;
        const Vec added = mul(load(part.acc[slab][d] + i * kSide), broadcast(factor[i]));
        store(acc, add(mul(load(acc), broadcast(old_factor[i])), added));
      }
    }
  }
}

// acc / sum; adding zero makes -0 of an underflow 0, whose sign depends on the tiling.
void store_rows(const AttentionArgs& a, int64_t offset, const Work& w, const State& state) {
  // Tiles 2d and 2d + 1 hold columns 0-3, 8-11, ... and 4-7, 12-15, ... of 32.
  const __m512i left = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i right = _mm512_add_epi32(left, _mm512_set1_epi32(8));
  bf16* out = static_cast<bf16*>(a.out) + offset;
  for (int r = 0; r < w.rows; ++r) {
    bf16* to = out + row_offset(w, r, a.out_stride, a.head_dim);
    const Vec scale = broadcast(1.0f / state.sum[r]);
    for (int d = 0; d < w.dim_tiles; d += 2) {
      const float* acc = state.acc[r / kSide][d] + r % kSide * kSide;
      const Vec x = load(acc), y = load(acc + kCells);
      store(to + 16 * d, add(mul(_mm512_permutex2var_ps(x, left, y), scale), zero()));
      store(to + 16 * d + 16, add(mul(_mm512_permutex2var_ps(x, right, y), scale), zero()));
    }
  }
}

void set_rows(const AttentionArgs& a, const AttentionTile& tile, Work& w) {
  w.group = static_cast<int>(a.heads / a.kv_heads);
  w.rows = tile.rows * w.group;
  w.slabs = (w.rows + kSide - 1) / kSide;
  w.dim_steps = static_cast<int>(a.head_dim / 32);
  w.dim_tiles = 2 * w.dim_steps;
  for (int r = 0; r < w.slabs * kSide; ++r) {
    w.at[r] = tile.position + (r < w.rows ? r : w.rows - 1) / w.group;
  }
}

}  // namespace

bool attention_fits_tiles(const AttentionArgs& a) {
  return a.q_dtype == kBFloat16 && a.head_dim % 32 == 0;
}

template <class T>
void tiled_attention(const AttentionArgs& a, const AttentionTile& tile, int64_t head,
                     int64_t end_head) {
  Work w;
  set_rows(a, tile, w);
  State states[2];
  const int32_t* table = a.block_tables + tile.seq * a.block_table_stride;
  const int64_t end = tile.position + tile.rows;
  const int64_t begin = a.window > 0 && tile.position >= a.window ? tile.position - a.window + 1 : 0;
  const int64_t first = begin / kAttentionKeys * kAttentionKeys;
  configure_tiles();
  Keys keys = find_keys<T>(a, table, head, first, begin, end);
  for (; head < end_head; ++head) {
    const int64_t column = head * w.group * a.head_dim;
    pack_queries(a, tile.row * a.q_stride + column, w);
    State *part = &states[0], *total = nullptr;
    clear(w, *part);
    for (int64_t start = first; start < end; start += kAttentionKeys) {
      if (start % kAttentionPartition == 0 && start > begin) {
        if (total == nullptr) {
          total = part;
          part = &states[1];
        } else {
          merge(w, *total, *part);
        }
        clear(w, *part);
      }
      Keys<T> next{};
      if (start + kAttentionKeys < end) {
        next = find_keys<T>(a, table, head, start + kAttentionKeys, begin, end);
      } else if (head + 1 < end_head) {
        next = find_keys<T>(a, table, head + 1, first, begin, end);
      }
      attend(a, w, keys, next, start, *part);
      keys = next;
    }
    if (total != nullptr) merge(w, *total, *part);
    store_rows(a, tile.row * a.out_stride + column, w, total != nullptr ? *total : *part);
  }
  _tile_release();
}

template void tiled_attention<bf16>(const AttentionArgs&, const AttentionTile&, int64_t, int64_t);
template void tiled_attention<int8_t>(const AttentionArgs&, const AttentionTile&, int64_t, int64_t);

}  // namespace quire::QUIRE_ISA

#endif
