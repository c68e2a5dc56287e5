// Paged attention with a running softmax (Milakov and Gimelshein 2018; Dao et al. 2022), in float.
// attention_pairs.h, attention_float8.h and attention_tall.h have faster products for some caches. A
// task is a tile of query rows (positions x heads of one kv head), so a key is read once for all of
// them. attention_walk.h defines the order.
#include "attention_step.h"
#include "attention_walk.h"

namespace quire::QUIRE_ISA {

namespace {

constexpr int64_t kLead = 10 << 10;   // default prefetch distance in bytes for few rows

// Elements from the first head's first row to row r, of q or out.
int64_t row_offset(const Rows& rows, int r, int64_t stride) {
  const int head = r / rows.count, in_head = r % rows.count;
  return in_head / rows.group * stride + (head * rows.group + in_head % rows.group) * rows.dim;
}

// q[r] of the tile's rows.
template <class Q, class E>
QUIRE_ONCE void load_rows(const AttentionArgs& a, const Rows& rows, int64_t offset, Queries<E>& q) {
  for (int r = 0; r < rows.total(); ++r) {
    const Q* from = static_cast<const Q*>(a.q) + offset + row_offset(rows, r, a.q_stride);
    E* const to = q.rows + r * kWidth;
    if constexpr (kIsFloat<E> || kIsInt16<E>) {
      if (a.packed) {
        alignas(64) float turned[kWidth] = {};
        widen(from, rows.dim, turned);
        rotate(turned, rows.dim);
        if constexpr (kIsFloat<E>) {
          q.worth[r] = round_query(turned, rows.dim, to, q.codes + r * kWidth);
        } else {
          q.worth[r] = load_query(turned, rows.dim, to);
        }
        continue;
      }
    }
    q.worth[r] = load_query(from, rows.dim, to);
  }
}

// acc / sum; adding zero makes -0 of an underflow 0, whose sign depends on the tiling.
template <class Q>
QUIRE_ONCE void store_rows(const AttentionArgs& a, const Rows& rows, int64_t kv_head,
                           int64_t offset, const State& state) {
  for (int r = 0; r < rows.total(); ++r) {
    Q* to = static_cast<Q*>(a.out) + offset + row_offset(rows, r, a.out_stride);
    const int64_t head = (kv_head + r / rows.count) * rows.group + r % rows.count % rows.group;
    const Vec scale = broadcast(a.v_unit / with_sink(a, head, state.sum[r], state.top[r]));
    for (int64_t d = 0; d < rows.dim; d += kLanes) {
      const Vec v = add(mul(load(state.acc + r * kWidth + d), scale), zero());
      if (!kTails || d + kLanes <= rows.dim) {
        store(to + d, v);
      } else {
        store(to + d, v, rows.dim - d);
      }
    }
  }
}

// The work for `walk`; E is the element type of queries in products.
template <class E, class T>
struct Work {
  using State = QUIRE_ISA::State;

  const AttentionArgs& a;
  const AttentionTask& task;
  Rows tile;
  Queries<E> q;

  Work(const AttentionArgs& args, const AttentionTask& what)
      : a(args), task(what), tile{args, 0, 0, 0, 0, 0, 0, 0} {
    tile.group = static_cast<int>(a.heads / a.kv_heads);
    tile.count = task.rows * tile.group;
    tile.position = task.position;
    tile.dim = a.head_dim;
    tile.ahead = attention_ahead(a, task.seq);
    tile.last = a.seq_lens[task.seq] - 1;
  }

  // If many rows read a head's keys, they are converted once; else heads are computed together.
  bool tall() const { return tile.count >= (a.tuning.tall_rows > 0 ? a.tuning.tall_rows : kTall); }
  int heads() const {
    const int fitting = kAttentionRows / tile.count;
    return tall() ? 1 : fitting < kHeads ? fitting : kHeads;
  }

  int64_t lead() const {
    return tall() ? kWholeTile : a.tuning.ahead_bytes > 0 ? a.tuning.ahead_bytes : kLead;
  }

  int rows() const { return tile.total(); }
  int64_t column(int64_t head) const { return head * tile.group * a.head_dim; }

  void load(int64_t head, int heads) {
    tile.heads = heads;
    const int64_t offset = task.row * a.q_stride + column(head);
    if constexpr (kIsFloat<E>) {
      switch (a.q_dtype) {
        case kBFloat16: return load_rows<bf16>(a, tile, offset, q);
        case kFloat16: return load_rows<f16>(a, tile, offset, q);
        default: return load_rows<float>(a, tile, offset, q);
      }
    } else {
      load_rows<bf16>(a, tile, offset, q);
    }
  }

  void attend(const Keys<T>& keys, Ahead& ahead, int64_t start, State& state) {
    Step<E> step(tile, q, ahead, start, a, state);
    if constexpr (kIsInt8<T>) {
      if (a.packed) return attend_packed(step, keys);
    }
    if (tile.heads > 1) return step.attend_heads(keys, nullptr);
    Scales scales;
    const bool scaled = sizeof(T) == 1 && a.k_scale != nullptr;
    if (scaled) scales.read(keys);
    attend_head(step, keys, scaled ? &scales : nullptr);
  }

  void attend_packed(Step<E>& step, const Keys<int8_t>& keys) {
    Unpacked room(keys);
    if (!tall()) return step.attend_heads(keys, multiplies_codes(a.head_dim) ? nullptr : &room);
    Scales scales;
    scales.read(keys);
    room.read(keys, false, keys.first, keys.last);
    room.read(keys, true, keys.first, keys.last);
    attend_head(step, room.keys, &scales);
  }

  void attend_head(Step<E>& step, const Keys<T>& keys, const Scales* read) {
    if constexpr (!kIsFloat<T>) {
      if (tall()) {
        const Tall<E, T> wide(keys);
        if constexpr (kIsFloat<E>) {
          return step.attend(wide.keys, read);
        } else {
          return step.attend_tall(wide, read);
        }
      }
    }
    step.attend(keys, read);
  }

  void store(int64_t head, State& state) {
    for (int r = 0; r < tile.total(); ++r) {
      order_columns(state.acc + r * kWidth, tile.dim, q.rows);
      if (a.packed) rotate(state.acc + r * kWidth, tile.dim);
    }
    const int64_t offset = task.row * a.out_stride + column(head);
    switch (a.q_dtype) {
      case kBFloat16: return store_rows<bf16>(a, tile, head, offset, state);
      case kFloat16: return store_rows<f16>(a, tile, head, offset, state);
      default: return store_rows<float>(a, tile, head, offset, state);
    }
  }
};

template <class E, class T>
void attend_task(const AttentionArgs& a, const AttentionTask& task) {
  Work<E, T> work(a, task);
  walk<T>(a, task, work);
}

}  // namespace

template <class T>
void paged_attention(const AttentionArgs& a, int64_t index) {
  const AttentionTask& task = a.tasks[index];
#if defined(QUIRE_PAIRS)
  if constexpr (sizeof(T) == 1 || kIsBfloat16<T>) {
    if (fits_pairs(a, 16 * kInterleaved<T>)) return attend_task<typename PairOf<T>::Element, T>(a, task);
  }
#endif
  attend_task<float, T>(a, task);
}

void exp2_floats(float* y, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = count - i < kLanes ? count - i : kLanes;
    if (n == kLanes) {
      store(y + i, exp2(load(x + i)));
    } else {
      store(y + i, exp2(load(x + i, n)), n);
    }
  }
}

template void paged_attention<float>(const AttentionArgs&, int64_t);
template void paged_attention<bf16>(const AttentionArgs&, int64_t);
template void paged_attention<f16>(const AttentionArgs&, int64_t);
template void paged_attention<int8_t>(const AttentionArgs&, int64_t);
template void paged_attention<f8_e4m3>(const AttentionArgs&, int64_t);
template void paged_attention<f8_e5m2>(const AttentionArgs&, int64_t);

}  // namespace quire::QUIRE_ISA
