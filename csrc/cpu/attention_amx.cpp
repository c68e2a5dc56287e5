// Paged attention on AMX tiles, in bfloat16 (which represents int8 and 8-bit floats exactly), with the
// tasks, tiles and guarantees of attention.cpp.
//
// A tile register holds 16 rows of 64 bytes. Per 16 query rows and key tile of kAttentionKeys:
//
//   scores^T [keys, rows]  = K [keys, dim] x q^T     K straight from the cache, q repacked once
//   weights  [rows, keys]  = exp2(...)               row maxima and sums are lane-wise; then transposed
//   acc      [rows, dim]  += weights x V [keys, dim] V repacked: pairs of keys interleaved
//
// Interleaving permutes every 32 columns of V by kColumnOrder, which is undone at the end. An element of
// a product depends only on its own row and column, and hidden keys have weight 0. So a row's result
// has the same bits whatever other rows are in its tiles.
#include "attention_amx_scores.h"
#include "attention_amx_values.h"
#include "attention_any.h"
#include "attention_walk.h"

namespace quire::QUIRE_ISA {

namespace {

void clear(const Work& w, State& state) {
  for (int i = 0; i < w.slabs * kSide; i += kSide) {
    store(state.top + i, broadcast(kNothing));
    store(state.sum + i, zero());
  }
  state.empty = true;
}

// One key tile; `scales` may be null.
template <class T>
void attend(const AttentionArgs& a, Work& w, const Keys<T>& keys, const Scales* scales,
            Ahead& ahead, int64_t start, State& state) {
  const int last_tile = (keys.last + kSide - 1) / kSide;
  int tile = keys.first / kSide;
  const int step = tile / 2, end = (last_tile + 1) / 2;
  for (; tile + 2 <= last_tile; tile += 2) score<2>(w, keys, tile, ahead);
  if (tile < last_tile) score<1>(w, keys, tile, ahead);
  const Scaling scaling(a);
  const bool capped = scaling.cap > 0.0f;
  for (int slab = 0; slab < w.slabs; ++slab) {
    if (scales != nullptr) scale_scores(w, slab, *scales, 32 * step, 32 * end);
    if (capped) cap_scores(w, slab, scaling.scale, 32 * step, 32 * end);
    hide(w, slab, start, keys, 32 * step, 32 * end);
    weigh(w, slab, scales, state, capped ? scaling.cap : scaling.scale, step, end, ahead);
  }
  if (w.slabs == 1) {  // one step's values at a time stay in the L1 cache; the sums are the same
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
  state.empty = false;
}

// Adds a partial result to the total. An empty one on either side changes nothing.
QUIRE_ONCE void merge(const Work& w, State& total, const State& part) {
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

// A partial result to plain floats and back.
void save(const Work& w, const State& state, float* to) {
  const int64_t rows = w.slabs * kSide;
  __builtin_memcpy(to, state.top, sizeof(float) * static_cast<uint64_t>(rows));
  __builtin_memcpy(to + rows, state.sum, sizeof(float) * static_cast<uint64_t>(rows));
  const int64_t slab = w.dim_tiles * kCells;
  for (int i = 0; i < w.slabs; ++i) {
    __builtin_memcpy(to + 2 * rows + i * slab, state.acc[i],
                     sizeof(float) * static_cast<uint64_t>(slab));
  }
}
void restore(const Work& w, const float* from, State& state) {
  const int64_t rows = w.slabs * kSide;
  __builtin_memcpy(state.top, from, sizeof(float) * static_cast<uint64_t>(rows));
  __builtin_memcpy(state.sum, from + rows, sizeof(float) * static_cast<uint64_t>(rows));
  const int64_t slab = w.dim_tiles * kCells;
  for (int i = 0; i < w.slabs; ++i) {
    __builtin_memcpy(state.acc[i], from + 2 * rows + i * slab,
                     sizeof(float) * static_cast<uint64_t>(slab));
  }
  state.empty = false;
}

// acc / sum; adding zero makes -0 of an underflow 0, whose sign depends on the tiling.
QUIRE_ONCE void store_rows(const AttentionArgs& a, int64_t kv_head, int64_t offset, const Work& w,
                           const State& state) {
  // Tiles 2d and 2d + 1 hold columns 0-3, 8-11, ... and 4-7, 12-15, ... of 32.
  const __m512i left = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i right = _mm512_add_epi32(left, _mm512_set1_epi32(8));
  bf16* out = static_cast<bf16*>(a.out) + offset;
  for (int r = 0; r < w.rows; ++r) {
    bf16* to = out + row_offset(w, r, a.out_stride, a.head_dim);
    const int64_t head = kv_head * w.group + r % w.group;
    const Vec scale = broadcast(a.v_unit / with_sink(a, head, state.sum[r], state.top[r]));
    alignas(64) float row[kAttentionHeadDim];
    for (int d = 0; d < w.dim_tiles; d += 2) {
      const float* acc = state.acc[r / kSide][d] + r % kSide * kSide;
      const Vec x = load(acc), y = load(acc + kCells);
      store(row + 16 * d, mul(_mm512_permutex2var_ps(x, left, y), scale));
      store(row + 16 * d + 16, mul(_mm512_permutex2var_ps(x, right, y), scale));
    }
    if (a.packed) rotate(row, a.head_dim);
    for (int64_t d = 0; d < a.head_dim; d += kLanes) store(to + d, add(load(row + d), zero()));
  }
}

void set_rows(const AttentionArgs& a, const AttentionTask& tile, Work& w) {
  w.group = static_cast<int>(a.heads / a.kv_heads);
  w.rows = tile.rows * w.group;
  w.slabs = (w.rows + kSide - 1) / kSide;
  w.dim_steps = static_cast<int>(a.head_dim / 32);
  w.dim_tiles = 2 * w.dim_steps;
  for (int r = 0; r < w.slabs * kSide; ++r) {
    w.at[r] = tile.position + (r < w.rows ? r : w.rows - 1) / w.group;
    w.first[r] = static_cast<int32_t>(attention_first(a, w.at[r]));
  }
  w.ahead = static_cast<int>(attention_ahead(a, tile.seq));
  w.last = a.seq_lens[tile.seq] - 1;
}

// The work for `walk`.
template <class T>
struct TileWork {
  using State = QUIRE_ISA::State;

  const AttentionArgs& a;
  const AttentionTask& task;
  Work tile;

  TileWork(const AttentionArgs& args, const AttentionTask& what) : a(args), task(what) {
    set_rows(a, task, tile);
  }

  int heads() const { return 1; }
  int64_t lead() const { return kWholeTile; }
  int rows() const { return tile.rows; }
  int64_t column(int64_t head) const { return head * tile.group * a.head_dim; }

  void load(int64_t head, int) { pack_queries(a, task.row * a.q_stride + column(head), tile); }
  void attend(const Keys<T>& keys, Ahead& ahead, int64_t start, State& state) {
    if constexpr (sizeof(T) == 1) {
      if (a.k_scale != nullptr) {
        Scales scales;
        scales.read(keys);
        if constexpr (__is_same(T, int8_t)) {
          if (a.packed) return attend_packed(keys, scales, ahead, start, state);
        }
        return QUIRE_ISA::attend(a, tile, keys, &scales, ahead, start, state);
      }
    }
    QUIRE_ISA::attend(a, tile, keys, nullptr, ahead, start, state);
  }
  void attend_packed(const Keys<int8_t>& keys, const Scales& scales, Ahead& ahead, int64_t start,
                     State& state) {
    Unpacked room(keys);
    room.read(keys, false, keys.first, keys.last);
    room.read(keys, true, keys.first, keys.last);
    QUIRE_ISA::attend(a, tile, room.keys, &scales, ahead, start, state);
  }
  void store(int64_t head, const State& state) {
    store_rows(a, head, task.row * a.out_stride + column(head), tile, state);
  }
};

bool fits_tiles(const AttentionArgs& a) {
  return attention_fits(a) && a.q_dtype == kBFloat16 && a.head_dim % 32 == 0;
}

}  // namespace

template <class T>
void tiled_attention(const AttentionArgs& a, int64_t index) {
  if (!fits_tiles(a)) return attention<T>(a, index);
  configure_tiles();
  TileWork<T> work(a, a.tasks[index]);
  walk<T>(a, a.tasks[index], work);
  _tile_release();
}

template void tiled_attention<bf16>(const AttentionArgs&, int64_t);
template void tiled_attention<int8_t>(const AttentionArgs&, int64_t);
template void tiled_attention<f8_e4m3>(const AttentionArgs&, int64_t);
template void tiled_attention<f8_e5m2>(const AttentionArgs&, int64_t);

}  // namespace quire::QUIRE_ISA
