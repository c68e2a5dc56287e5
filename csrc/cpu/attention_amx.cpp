// Paged attention on AMX tiles, in bfloat16 (which represents int8 and 8-bit floats exactly), with the
// tasks, tiles and guarantees of attention.cpp. A task has up to kAttentionMostRows rows.
//
// A tile register holds 16 rows of 64 bytes. Per 16 query rows and key tile of kAttentionKeys:
//
//   scores^T [keys, rows]  = K [keys, dim] x q^T     K straight from the cache, q repacked once
//   weights  [rows, keys]  = exp2(...)               row maxima and sums are lane-wise; then transposed
//   acc      [rows, dim]  += weights x V [keys, dim] V repacked: pairs of keys interleaved
//
// Interleaving permutes every 32 columns of V, which is undone at the end. With at most kFewRows rows of
// a head, vectors hold several keys of the rows, and some heads are computed together. An element of a
// product depends only on its own row and column, and hidden keys have weight 0. So a row's result has
// the same bits whatever other rows are in its tiles.
#include "attention_amx_scores.h"
#include "attention_amx_values.h"
#include "attention_amx_weights.h"
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

// The steps of 32 keys that rows of slabs [slab, slab + count) see.
template <class T>
Steps seen_steps(const Work& w, const Keys<T>& keys, int slab, int count, int64_t start) {
  // Positions ascend, and so do the first tokens that rows see.
  const int64_t low = w.first[slab * kSide] - start;
  const int64_t high = w.at[(slab + count) * kSide - 1] + int64_t{w.ahead} + 1 - start;
  const int64_t first = low > keys.first ? low : keys.first, last = high < keys.last ? high : keys.last;
  if (first >= last) return {0, 0};
  return {static_cast<int>(first / 32), static_cast<int>((last + 31) / 32)};
}

// One key tile and all rows of a head; `scales` may be null.
template <class T>
void attend(const AttentionArgs& a, Work& w, const Keys<T>& keys, const Scales* scales,
            Ahead& ahead, int64_t start, State& state) {
  const int first = keys.first / kSide, last = (keys.last + kSide - 1) / kSide;
  KeyRows k[kKeyTiles];
  for (int tile = first; tile < last; ++tile) k[tile] = key_rows(keys, tile, w.k[tile]);
  for (int slab = 0; slab < w.slabs; slab += 2) {
    const int slabs = slab + 1 < w.slabs ? 2 : 1;
    const Steps steps = w.seen[slab / 2] = seen_steps(w, keys, slab, slabs, start);
    if (steps.none()) continue;
    const int begin = 2 * steps.begin, end = 2 * steps.end;
    const int count = slabs < kSlabsAtOnce<T> ? slabs : kSlabsAtOnce<T>;
    for (int s = slab; s < slab + slabs; s += count) {
      score_tiles<T>(w, k, s, count, begin > first ? begin : first, end < last ? end : last);
      for (int i = 0; i < count; ++i) {
        weigh_tile<kSide>(a, w, s + i, keys, scales, start, state, steps.begin, steps.end, i);
      }
    }
  }
  const Steps all{first / 2, (last + 1) / 2};
  int d = 0;
  for (; d + 2 <= w.dim_steps; d += 2) add_columns<2>(w, state, keys, d, all, ahead);
  if (d < w.dim_steps) add_columns<1>(w, state, keys, d, all, ahead);
  state.empty = false;
}

// One key tile and the few rows of w.slabs heads; `scales` may be null, and are of one head.
template <class T>
void attend_few(const AttentionArgs& a, Work& w, Keys<T> keys, const Scales* scales, Ahead& ahead,
                int64_t start, State& state) {
  const int first = keys.first / kSide, last = (keys.last + kSide - 1) / kSide;
  const int step = first / 2, end = (last + 1) / 2;
  configure_few_scores(w);
  for (int tile = first; tile < last; tile += 2) {
    const int count = last - tile < 2 ? 1 : 2;
    for (int head = 0; head < w.slabs; ++head) {
      keys.set_head(head);
      KeyRows k[2];
      for (int i = 0; i < count; ++i) k[i] = key_rows(keys, tile + i, w.k[2 * (head % 2) + i]);
      if (count == 2) score_few<T, 2>(w, k, head, tile, ahead);
      if (count == 1) score_few<T, 1>(w, k, head, tile, ahead);
    }
  }
  for (int head = 0; head < w.slabs; ++head) {
    switch (w.lanes) {
      case 1: weigh_tile<1>(a, w, head, keys, scales, start, state, step, end, head); break;
      case 2: weigh_tile<2>(a, w, head, keys, scales, start, state, step, end, head); break;
      case 4: weigh_tile<4>(a, w, head, keys, scales, start, state, step, end, head); break;
      default: weigh_tile<8>(a, w, head, keys, scales, start, state, step, end, head);
    }
  }
  configure_few_values(w);
  for (int head = 0; head < w.slabs; ++head) {
    keys.set_head(head);
    add_few(w, state, keys, head, step, end, ahead);
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
      for (int i = 0; i < w.rows_of(slab); ++i) {
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
QUIRE_ONCE void store_row(const AttentionArgs& a, int64_t head, const State& state, int slab, int r,
                          bf16* to) {
  // Tiles 2d and 2d + 1 hold columns 0-3, 8-11, ... and 4-7, 12-15, ... of 32.
  const __m512i left = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i right = _mm512_add_epi32(left, _mm512_set1_epi32(8));
  const int at = slab * kSide + r;
  const Vec scale = broadcast(a.v_unit / with_sink(a, head, state.sum[at], state.top[at]));
  alignas(64) float row[kAttentionHeadDim];
  for (int64_t d = 0; d < a.head_dim; d += 32) {
    const float* acc = state.acc[slab][d / kSide] + r * kSide;
    const Vec x = load(acc), y = load(acc + kCells);
    store(row + d, mul(_mm512_permutex2var_ps(x, left, y), scale));
    store(row + d + 16, mul(_mm512_permutex2var_ps(x, right, y), scale));
  }
  if (a.packed) rotate(row, a.head_dim);
  for (int64_t d = 0; d < a.head_dim; d += kLanes) store(to + d, add(load(row + d), zero()));
}

void set_rows(const AttentionArgs& a, const AttentionTask& task, Work& w) {
  w.group = static_cast<int>(a.heads / a.kv_heads);
  w.rows = task.rows * w.group;
  w.lanes = kSide;
  if (w.rows <= kFewRows) {
    for (w.lanes = 1; w.lanes < w.rows;) w.lanes *= 2;
  }
  w.slabs = (w.rows + kSide - 1) / kSide;
  w.dim_steps = static_cast<int>(a.head_dim / 32);
  w.dim_tiles = 2 * w.dim_steps;
  for (int i = 0; i < w.slabs * kSide; ++i) {
    const int r = w.few() ? i % w.lanes : i;
    w.at[i] = task.position + (r < w.rows ? r : w.rows - 1) / w.group;
    w.first[i] = static_cast<int32_t>(attention_first(a, w.at[i]));
  }
  w.ahead = static_cast<int>(attention_ahead(a, task.seq));
  w.last = a.seq_lens[task.seq] - 1;
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

  // Heads of few rows that are read together: twice the bytes come in longer runs. In 8 bits a head at a
  // time was faster.
  int heads() const { return tile.few() && sizeof(T) == 2 ? kFewHeads : 1; }
  int64_t lead() const {
    if (!tile.few()) return kWholeTile;
    if (a.tuning.ahead_bytes > 0) return a.tuning.ahead_bytes;
    // A tile's keys: values are read column by column, so all of them should have come by then.
    return heads() * kAttentionKeys * (a.head_dim >> a.packed) * static_cast<int64_t>(sizeof(T));
  }
  int rows() const { return tile.slabs * kSide; }
  int64_t column(int64_t head) const { return head * tile.group * a.head_dim; }

  void load(int64_t head, int heads) {
    if (tile.few()) tile.slabs = heads;
    for (int slab = 0; slab < tile.slabs; ++slab) {
      const int64_t own = tile.few() ? head + slab : head;
      pack_queries<T>(a, task.row * a.q_stride + column(own), tile, slab);
    }
  }
  void attend(const Keys<T>& keys, Ahead& ahead, int64_t start, State& state) {
    if constexpr (sizeof(T) == 1) {
      if (a.k_scale != nullptr) {
        Scales scales;
        scales.read(keys);
        if constexpr (kWholeNumbers<T>) {
          if (a.packed) return attend_packed(keys, scales, ahead, start, state);
        }
        return attend_plain(keys, &scales, ahead, start, state);
      }
    }
    attend_plain(keys, nullptr, ahead, start, state);
  }
  void attend_packed(const Keys<int8_t>& keys, const Scales& scales, Ahead& ahead, int64_t start,
                     State& state) {
    Unpacked room(keys);
    room.read(keys, false, keys.first, keys.last);
    room.read(keys, true, keys.first, keys.last);
    attend_plain(room.keys, &scales, ahead, start, state);
  }
  void attend_plain(const Keys<T>& keys, const Scales* scales, Ahead& ahead, int64_t start,
                    State& state) {
    if (tile.few()) return attend_few(a, tile, keys, scales, ahead, start, state);
    QUIRE_ISA::attend(a, tile, keys, scales, ahead, start, state);
  }
  void store(int64_t head, const State& state) {
    for (int slab = 0; slab < tile.slabs; ++slab) {
      const int64_t own = tile.few() ? head + slab : head;
      bf16* const out = static_cast<bf16*>(a.out) + task.row * a.out_stride + column(own);
      for (int i = 0; i < tile.rows_of(slab); ++i) {
        const int r = tile.few() ? i : slab * kSide + i;
        store_row(a, own * tile.group + r % tile.group, state, slab, i,
                  out + row_offset(tile, r, a.out_stride, a.head_dim));
      }
    }
  }
};

bool fits_tiles(const AttentionArgs& a) {
  return attention_fits(a) && a.q_dtype == kBFloat16 && a.head_dim % 32 == 0;
}

}  // namespace

template <class T>
void tiled_attention(const AttentionArgs& a, int64_t index) {
  if (!fits_tiles(a)) return attention<T>(a, index);
  TileWork<T> work(a, a.tasks[index]);
  if (!work.tile.few()) configure_tiles();
  walk<T>(a, a.tasks[index], work);
  _tile_release();
}

int64_t tiled_attention_rows(const AttentionArgs& a, int dtype) {
  const bool tiled = dtype != kFloat32 && dtype != kFloat16;
  return tiled && fits_tiles(a) ? kAttentionMostRows : kAttentionRows;
}

template void tiled_attention<bf16>(const AttentionArgs&, int64_t);
template void tiled_attention<int8_t>(const AttentionArgs&, int64_t);
template void tiled_attention<f8_e4m3>(const AttentionArgs&, int64_t);
template void tiled_attention<f8_e5m2>(const AttentionArgs&, int64_t);

}  // namespace quire::QUIRE_ISA
