// A tile of latents and some query rows, and the loop of a task over its tiles.
#pragma once

#include "attention_latent.h"
#include "attention_tile.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int kTogether = 4;                    // rows that share a load of a key
constexpr int kColumns = kLanes >= 16 ? 4 : 2;  // vectors of sums per row, in registers
// Loops over accumulators, which GCC 12 would otherwise keep in memory.
#define QUIRE_UNROLLED _Pragma("GCC unroll 16")

// Converts n elements, which are exact in E, and fills up to `width` with zeros.
template <class T, class E>
void convert_row(const T* from, int64_t n, E* to, int64_t width) {
  each_vector(n, [&](int64_t d, auto... rest) {
    store(to + d, load(from + d, rest...), rest...);
  });
  __builtin_memset(to + n, 0, sizeof(E) * static_cast<uint64_t>(width - n));
}
template <class E>
void convert_row(const E* from, int64_t n, E* to, int64_t width) {
  __builtin_memcpy(to, from, sizeof(E) * static_cast<uint64_t>(n));
  __builtin_memset(to + n, 0, sizeof(E) * static_cast<uint64_t>(width - n));
}

// A tile of keys and the queries of a task, as E. Rows of keys behind the last one are zeros.
template <class E>
struct TileOf {
  const int64_t rope, rank, width, columns;
  E *k, *q;  // [kKeys, width], [kAttentionRows, width]

  TileOf(const LatentArgs& a, float* memory)
      : rope(a.rope), rank(a.base.head_dim), width(latent_width(a)), columns(latent_columns(a)),
        k(reinterpret_cast<E*>(memory + kKeys * columns)), q(k + kKeys * width + 64) {}

  float* end() const { return reinterpret_cast<float*>(q + kAttentionRows * width); }

  template <class T>
  void set_key(int j, const T* from) const {
    convert_row(from, rope + rank, k + j * width, width);
  }
  void clear_keys(int first, int last) const {
    __builtin_memset(k + first * width, 0,
                     sizeof(E) * static_cast<uint64_t>(width * (last - first)));
  }

  template <class Q>
  void set_query(int row, const Q* rope_part, const Q* latent_part) const {
    E* const to = q + row * width;
    convert_row(rope_part, rope, to, rope);
    convert_row(latent_part, rank, to + rope, width - rope);
  }
};

// Calls body<R>(row) for all rows, kTogether at a time and then one by one.
template <class Body>
void each_rows(int rows, const Body& body) {
  int r = 0;
  for (; r + kTogether <= rows; r += kTogether) body.template operator()<kTogether>(r);
  for (; r < rows; ++r) body.template operator()<1>(r);
}

#if defined(__AVX512BF16__)

// Weights are rounded to bfloat16. Values are interleaved in pairs of keys: a lane has a column of both.
struct PairsOf : TileOf<bf16> {
  bf16 *v, *w;  // [kKeys / 2, columns, 2], [kAttentionRows, kKeys]

  PairsOf(const LatentArgs& a, float* memory)
      : TileOf(a, memory), v(reinterpret_cast<bf16*>(memory)), w(q + kAttentionRows * width) {}

  float* end() const { return reinterpret_cast<float*>(w + kAttentionRows * kKeys); }

  void finish_keys(int last) const {
    clear_keys(last, (last + 31) / 32 * 32);
    alignas(64) static constexpr uint16_t kZip[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,
                                                      37, 6, 38, 7, 39, 8,  40, 9,  41, 10, 42,
                                                      11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_load_si512(kZip);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (int j = 0; j < (last + 31) / 32 * 32; j += 2) {
      const bf16* const key = k + j * width + rope;
      bf16* const to = v + j * columns;
      for (int64_t d = 0; d < columns; d += 32) {
        const __m512i x = _mm512_loadu_si512(key + d), y = _mm512_loadu_si512(key + width + d);
        _mm512_storeu_si512(to + 2 * d, _mm512_permutex2var_epi16(x, low, y));
        _mm512_storeu_si512(to + 2 * d + 32, _mm512_permutex2var_epi16(x, high, y));
      }
    }
  }

  void round_weights(int rows, int last, const float* weights) const {
    const int end = (last + kGroup - 1) / kGroup * kGroup;
    for (int r = 0; r < rows; ++r) {
      bf16* const to = w + r * kKeys;
      for (int j = 0; j < end; j += kGroup) store(to + j, load(weights + r * kKeys + j));
      if (end % 32 != 0) store(to + end, zero());
    }
  }
};

#endif

// A partial result of softmax(s) v: sums / sum, both times 2^-top.
struct Partial {
  float *top, *sum, *acc;  // [rows], [rows], [rows, columns]

  Partial(float* at, int64_t rows)
      : top(at), sum(at + latent_padded(rows, 16)), acc(sum + latent_padded(rows, 16)) {}
};

// The work of a task. T is the dtype of the cache; Tile has the products.
template <class T, class Tile>
class Work {
 public:
  Work(const LatentArgs& args, const AttentionTask& what, float* memory)
      : l(args), a(args.base), task(what), group(a.heads / a.kv_heads), rows(task.rows * group),
        columns(latent_columns(l)), tile(l, memory) {
    scores = tile.end();
    keep = scores + kAttentionRows * kKeys;
    scales = keep + kAttentionRows;
    states = scales + kKeys;
  }

  void run() {
    for (int64_t head = task.head; head < task.end_head; ++head) {
      switch (a.q_dtype) {
        case kBFloat16: load_queries<bf16>(head * group); break;
        case kFloat16: load_queries<f16>(head * group); break;
        default: load_queries<float>(head * group);
      }
      Partial total(states, rows);
      if (!(task.merge < 0 ? attend_all(total) : attend_part(total, head))) continue;
      switch (a.q_dtype) {
        case kBFloat16: store_rows<bf16>(total, head * group); break;
        case kFloat16: store_rows<f16>(total, head * group); break;
        default: store_rows<float>(total, head * group);
      }
    }
  }

 private:
  bool attend_all(const Partial& total) {
    Partial part = total;
    for (int64_t begin = task.begin; begin < task.end; begin = end_of_partition(begin)) {
      attend(part, begin, end_of_partition(begin));
      if (begin > task.begin) merge(total, part);
      part = Partial(states + latent_state_floats(l), rows);
    }
    return true;
  }

  // Some of the partitions. The task that finishes the last ones merges all.
  bool attend_part(const Partial& total, int64_t head) {
    AttentionMerge& parts = a.merges[task.merge + head - task.head];
    const int64_t size = attention_partial_floats(rows, a.head_dim);
    float* const partials = a.partials + parts.at;
    int done = 0;
    for (int64_t begin = task.begin; begin < task.end; begin = end_of_partition(begin)) {
      attend(Partial(states, rows), begin, end_of_partition(begin));
      save(Partial(states, rows), partials + (task.part + done++) * size);
    }
    if (__atomic_sub_fetch(&parts.left, done, __ATOMIC_ACQ_REL) != 0) return false;
    const Partial part(states + latent_state_floats(l), rows);
    for (int i = 0; i < parts.parts; ++i) {
      restore(i == 0 ? total : part, partials + i * size);
      if (i > 0) merge(total, part);
    }
    return true;
  }

  int64_t end_of_partition(int64_t begin) const {
    const int64_t end = (begin / kAttentionPartition + 1) * kAttentionPartition;
    return end < task.end ? end : task.end;
  }

  // The keys [begin, end) of one partition.
  void attend(const Partial& state, int64_t begin, int64_t end) {
    for (int64_t r = 0; r < rows; ++r) {
      state.top[r] = kNothing;
      state.sum[r] = 0.0f;
    }
    __builtin_memset(state.acc, 0, sizeof(float) * static_cast<uint64_t>(rows * columns));
    for (int64_t start = begin; start < end; start += kKeys) {
      const int64_t last = end - start < kKeys ? end - start : kKeys;
      read_keys(start, static_cast<int>(last));
      attend_tile(state, start, static_cast<int>(last));
    }
  }

  void read_keys(int64_t start, int last) {
    const int32_t* const table = a.block_tables + task.seq * a.block_table_stride;
    const int64_t width = l.rope + a.head_dim;
    for (int j = 0; j < last; ++j) {
      const int64_t block = table[(start + j) / a.block_size], at = (start + j) % a.block_size;
      tile.set_key(j, static_cast<const T*>(a.k) + block * a.k_block_stride + at * width);
      if (a.k_scale == nullptr) continue;
      scales[j] = as_float(static_cast<const bf16*>(a.k_scale)[block * a.block_size + at]);
    }
    for (int j = last; j < kKeys; ++j) scales[j] = 0.0f;
    tile.finish_keys(last);
  }

  void attend_tile(const Partial& state, int64_t start, int last) {
    const int end = (last + kGroup - 1) / kGroup * kGroup;
    tile.score(static_cast<int>(rows), end, scores);
    multiply_by_scales(end);
    for (int r = 0; r < rows; ++r) {
      const int64_t seen = task.position + r / group - start;
      hide(scores + r * kKeys, 0, end, 0, seen < last ? seen : last - 1);
    }
    each_rows(static_cast<int>(rows), [&]<int R>(int row) { weigh_rows<R>(state, row, end); });
    multiply_by_scales(end);
    tile.add_values(static_cast<int>(rows), last, scores, keep, state.acc);
  }

  template <int R>
  void weigh_rows(const Partial& state, int row, int end) {
    const float scale = Scaling(a).scale;
    float* const s = scores + row * kKeys;
    float factors[R];
    for (int r = 0; r < R; ++r) factors[r] = scale;
    weigh<R>(s, 0, end, factors, state.top + row, state.sum + row, keep + row);
  }

  // Of scores, and of weights, if the cache has scales.
  void multiply_by_scales(int end) const {
    if (a.k_scale == nullptr) return;
    for (int64_t r = 0; r < rows; ++r) {
      for (int j = 0; j < end; j += kGroup) {
        float* const x = scores + r * kKeys + j;
        store(x, mul(load(x), load(scales + j)));
      }
    }
  }

  void merge(const Partial& total, const Partial& part) const {
    for (int64_t r = 0; r < rows; ++r) {
      const float top = total.top[r] > part.top[r] ? total.top[r] : part.top[r];
      const float old_scale = exp2(total.top[r] - top), scale = exp2(part.top[r] - top);
      total.top[r] = top;
      total.sum[r] = total.sum[r] * old_scale + part.sum[r] * scale;
      for (int64_t d = 0; d < columns; d += kLanes) {
        float* const acc = total.acc + r * columns + d;
        const Vec added = mul(load(part.acc + r * columns + d), broadcast(scale));
        store(acc, add(mul(load(acc), broadcast(old_scale)), added));
      }
    }
  }

  // A partial result to plain floats and back.
  void save(const Partial& state, float* to) const {
    for (int64_t r = 0; r < rows; ++r, to += a.head_dim + 2) {
      to[0] = state.top[r];
      to[1] = state.sum[r];
      __builtin_memcpy(to + 2, state.acc + r * columns,
                       sizeof(float) * static_cast<uint64_t>(a.head_dim));
    }
  }
  void restore(const Partial& state, const float* from) const {
    for (int64_t r = 0; r < rows; ++r, from += a.head_dim + 2) {
      state.top[r] = from[0];
      state.sum[r] = from[1];
      __builtin_memcpy(state.acc + r * columns, from + 2,
                       sizeof(float) * static_cast<uint64_t>(a.head_dim));
    }
  }

  template <class Q>
  void load_queries(int64_t head) {
    for (int r = 0; r < rows; ++r) {
      const int64_t token = task.row + r / group, h = head + r % group;
      tile.set_query(r,
                     static_cast<const Q*>(l.q_rope) + token * l.q_rope_stride + h * l.q_rope_width,
                     static_cast<const Q*>(a.q) + token * a.q_stride + h * a.head_dim);
    }
    tile.finish_queries(static_cast<int>(rows));
  }

  template <class Q>
  void store_rows(const Partial& state, int64_t head) const {
    for (int64_t r = 0; r < rows; ++r) {
      Q* const to = static_cast<Q*>(a.out) + (task.row + r / group) * a.out_stride +
                    (head + r % group) * a.head_dim;
      const Vec scale = broadcast(a.v_unit / state.sum[r]);
      for (int64_t d = 0; d < a.head_dim; d += kLanes) {
        // Adding zero makes -0 of an underflow 0, whose sign depends on the tiling.
        const Vec y = add(mul(load(state.acc + r * columns + d), scale), zero());
        if (d + kLanes <= a.head_dim) {
          store(to + d, y);
        } else {
          store(to + d, y, a.head_dim - d);
        }
      }
    }
  }

  const LatentArgs& l;
  const AttentionArgs& a;
  const AttentionTask& task;
  const int64_t group, rows, columns;
  Tile tile;
  float *scores, *keep, *scales, *states;
};

}  // namespace
}  // namespace quire::QUIRE_ISA
