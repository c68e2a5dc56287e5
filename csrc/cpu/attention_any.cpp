// Paged attention of the shapes that attention.cpp does not support: any head size, block size and
// number of heads per kv head. Keys and values become floats once per tile, for all rows of a task.
//
// A row's bits depend only on that row: its tiles begin at multiples of kAttentionKeys, it reads only
// keys that it sees, and its sums have one order whatever other rows are computed with it.
#include "attention_any.h"

#include "attention_tile.h"

namespace quire::QUIRE_ISA {

namespace {

constexpr int kTogether = 4;                    // max rows that share a load of a key
constexpr int kColumns = kLanes >= 16 ? 4 : 2;  // vectors of sums per row, in registers

// Converts any dtype to whole vectors of floats, padded with zeros.
template <class T>
void widen_row(const T* from, int64_t dim, float* to) {
  for (int64_t d = 0; d < dim; d += kLanes) {
    store(to + d, d + kLanes <= dim ? load(from + d) : load(from + d, dim - d));
  }
}

// The memory of a thread.
struct Room {
  int64_t dim, width;
  float *k, *v;              // [kKeys, width]
  float *k_scale, *v_scale;  // [kKeys]
  float *q, *acc;            // [rows, width]
  float *top, *sum, *keep;   // [rows]

  explicit Room(const AttentionArgs& a) : dim(a.head_dim), width(attention_any_width(a)) {
    const int64_t rows = attention_any_rows(a);
    k = a.partials;
    v = k + kKeys * width;
    k_scale = v + kKeys * width;
    v_scale = k_scale + kKeys;
    q = v_scale + kKeys;
    acc = q + rows * width;
    top = acc + rows * width;
    sum = top + rows;
    keep = sum + rows;
  }

  // Positions [begin, end) of the tile from `start` on.
  template <class T>
  void read_keys(const AttentionArgs& a, const int32_t* table, int64_t head, int64_t start,
                 int64_t begin, int64_t end) const {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t block = table[at / a.block_size];
      const int64_t token = head * a.block_size + at % a.block_size, j = at - start;
      const int64_t k_at = block * a.k_block_stride + token * dim;
      const int64_t v_at = block * a.v_block_stride + token * dim;
      const int64_t scale = block * a.kv_heads * a.block_size + token;
      if (a.packed) {
        unpack_token(a, k_at, v_at, scale, j);
        continue;
      }
      widen_row(static_cast<const T*>(a.k) + k_at, dim, k + j * width);
      widen_row(static_cast<const T*>(a.v) + v_at, dim, v + j * width);
      if (a.k_scale == nullptr) continue;
      k_scale[j] = as_float(static_cast<const bf16*>(a.k_scale)[scale]);
      v_scale[j] = as_float(static_cast<const bf16*>(a.v_scale)[scale]);
    }
  }

  void unpack_token(const AttentionArgs& a, int64_t k_at, int64_t v_at, int64_t scale, int64_t j) const {
    const uint8_t* const keys = static_cast<const uint8_t*>(a.k) + k_at / 2;
    const uint8_t* const values = static_cast<const uint8_t*>(a.v) + v_at / 2;
    const uint8_t* const signs = a.k_signs + scale * dim / 8;
    for (int64_t d = 0; d < width; ++d) {
      k[j * width + d] = d < dim ? key_level(keys, signs, d) : 0.0f;
      v[j * width + d] = d < dim ? value_level(values, d) : 0.0f;
    }
    k_scale[j] = scale_value(static_cast<const uint8_t*>(a.k_scale)[scale]);
    v_scale[j] = scale_value(static_cast<const uint8_t*>(a.v_scale)[scale]);
  }
};

// R rows from `row` on with one tile; all of them see keys [first, last).
template <int R>
struct AnyStep {
  const AttentionArgs& a;
  const Room& room;
  int row, first, last;
  alignas(64) float scores[R * kKeys];

  void attend() {
    const int begin = first / kGroup * kGroup, end = (last + kGroup - 1) / kGroup * kGroup;
    for (int j = begin; j < end; j += kGroup) score(j);
    weigh(begin, end);
    int64_t d = 0;
    for (; d + kColumns * kLanes <= room.dim; d += kColumns * kLanes) add_values<kColumns>(d);
    for (; d < room.dim; d += kLanes) add_values<1>(d);
  }

  // Hidden keys of a group may have any value.
  void score(int j) {
    Vec folded[R][kGroup / 4];
    for (int i = 0; i < kGroup; i += 4) {
      const float* const k = room.k + (j + i) * room.width;
      Vec s[R][4];
      for (int r = 0; r < R; ++r) s[r][0] = s[r][1] = s[r][2] = s[r][3] = zero();
      for (int64_t d = 0; d < room.dim; d += kLanes) {
        Vec x[4];
        for (int c = 0; c < 4; ++c) x[c] = load(k + c * room.width + d);
        for (int r = 0; r < R; ++r) {
          const Vec y = load(room.q + (row + r) * room.width + d);
          for (int c = 0; c < 4; ++c) s[r][c] = fma(y, x[c], s[r][c]);
        }
      }
      for (int r = 0; r < R; ++r) folded[r][i / 4] = fold(s[r]);
    }
    for (int r = 0; r < R; ++r) {
      const Vec s = join(folded[r]);
      store(scores + r * kKeys + j, a.k_scale != nullptr ? mul(s, load(room.k_scale + j)) : s);
    }
  }

  void weigh(int begin, int end) {
    const Scaling scaling(a);
    float factors[R];
    for (int r = 0; r < R; ++r) {
      factors[r] = scaling.scale;
      if (scaling.cap > 0.0f) {
        cap_scores(scores + r * kKeys, begin, end, factors[r]);
        factors[r] = scaling.cap;
      }
      hide(scores + r * kKeys, begin, end, first, last - 1);
    }
    QUIRE_ISA::weigh<R>(scores, begin, end, factors, room.top + row, room.sum + row,
                        room.keep + row);
    for (int r = 0; a.v_scale != nullptr && r < R; ++r) {
      for (int j = first; j < last; ++j) scores[r * kKeys + j] *= room.v_scale[j];
    }
  }

  // acc = acc · keep + weights · values, in C vectors of columns from d on.
  template <int C>
  void add_values(int64_t d) {
    Vec s[R][C];
    for (int r = 0; r < R; ++r) {
      const Vec keep = broadcast(room.keep[row + r]);
      for (int c = 0; c < C; ++c) {
        s[r][c] = mul(load(room.acc + (row + r) * room.width + d + c * kLanes), keep);
      }
    }
    for (int j = first; j < last; ++j) {
      Vec x[C];
      for (int c = 0; c < C; ++c) x[c] = load(room.v + j * room.width + d + c * kLanes);
      for (int r = 0; r < R; ++r) {
        const Vec weight = broadcast(scores[r * kKeys + j]);
        for (int c = 0; c < C; ++c) s[r][c] = fma(weight, x[c], s[r][c]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) {
        store(room.acc + (row + r) * room.width + d + c * kLanes, s[r][c]);
      }
    }
  }
};

template <int R>
void attend_rows(const AttentionArgs& a, const Room& room, int row, int first, int last) {
  AnyStep<R>{a, room, row, first, last, {}}.attend();
}

// All rows of a head with the tile that begins at `start`.
void attend_tile(const AttentionArgs& a, const Room& room, const Rows& rows, int64_t start) {
  const auto first = [&](int r) {
    const int64_t low = rows.low(r) - start;
    return static_cast<int>(low > 0 ? low : 0);
  };
  const auto last = [&](int r) {
    const int64_t end = rows.high(r) + 1 - start;
    return static_cast<int>(end < kKeys ? end : kKeys);
  };
  for (int r = 0, n; r < rows.count; r += n) {
    const int begin = first(r), end = last(r);
    n = 1;
    while (n < kTogether && r + n < rows.count && first(r + n) == begin && last(r + n) == end) ++n;
    if (begin >= end) continue;
    switch (n) {
      case 1: attend_rows<1>(a, room, r, begin, end); break;
      case 2: attend_rows<2>(a, room, r, begin, end); break;
      case 3: attend_rows<3>(a, room, r, begin, end); break;
      default: attend_rows<kTogether>(a, room, r, begin, end);
    }
  }
}

// Elements from a task's first token to row r of a head, in q or out.
int64_t row_at(const AttentionArgs& a, const Rows& rows, int64_t head, int r, int64_t stride) {
  return r / rows.group * stride + (head * rows.group + r % rows.group) * a.head_dim;
}

template <class Q>
void load_rows(const AttentionArgs& a, const Room& room, const Rows& rows, int64_t row,
               int64_t head) {
  const Q* const q = static_cast<const Q*>(a.q) + row * a.q_stride;
  for (int r = 0; r < rows.count; ++r) {
    widen_row(q + row_at(a, rows, head, r, a.q_stride), room.dim, room.q + r * room.width);
    if (a.packed) rotate(room.q + r * room.width, room.dim);
    __builtin_memset(room.acc + r * room.width, 0, sizeof(float) * static_cast<uint64_t>(room.width));
    room.top[r] = kNothing;
    room.sum[r] = 0.0f;
  }
}

template <class Q>
void store_rows(const AttentionArgs& a, const Room& room, const Rows& rows, int64_t row,
                int64_t head) {
  Q* const out = static_cast<Q*>(a.out) + row * a.out_stride;
  for (int r = 0; r < rows.count; ++r) {
    Q* const to = out + row_at(a, rows, head, r, a.out_stride);
    const float sum = with_sink(a, head * rows.group + r % rows.group, room.sum[r], room.top[r]);
    const Vec scale = broadcast(a.v_unit / sum);
    if (a.packed) rotate(room.acc + r * room.width, room.dim);
    for (int64_t d = 0; d < room.dim; d += kLanes) {
      const Vec y = mul(load(room.acc + r * room.width + d), scale);
      if (d + kLanes <= room.dim) {
        store(to + d, y);
      } else {
        store(to + d, y, room.dim - d);
      }
    }
  }
}

template <class T>
void attend_any(const AttentionArgs& a, const AttentionTask& task) {
  const Room room(a);
  const int group = static_cast<int>(a.heads / a.kv_heads);
  const Rows rows{a, 1, task.rows * group, group, task.position, a.head_dim, attention_ahead(a, task.seq),
                  a.seq_lens[task.seq] - 1};
  const int32_t* const table = a.block_tables + task.seq * a.block_table_stride;
  for (int64_t head = task.head; head < task.end_head; ++head) {
    switch (a.q_dtype) {
      case kBFloat16: load_rows<bf16>(a, room, rows, task.row, head); break;
      case kFloat16: load_rows<f16>(a, room, rows, task.row, head); break;
      default: load_rows<float>(a, room, rows, task.row, head);
    }
    for (int64_t start = task.begin / kKeys * kKeys; start < task.end; start += kKeys) {
      room.read_keys<T>(a, table, head, start, start < task.begin ? task.begin : start,
                        start + kKeys < task.end ? start + kKeys : task.end);
      attend_tile(a, room, rows, start);
    }
    switch (a.q_dtype) {
      case kBFloat16: store_rows<bf16>(a, room, rows, task.row, head); break;
      case kFloat16: store_rows<f16>(a, room, rows, task.row, head); break;
      default: store_rows<float>(a, room, rows, task.row, head);
    }
  }
}

}  // namespace

template <class T>
void attention(const AttentionArgs& a, int64_t index) {
  if (attention_fits(a)) return paged_attention<T>(a, index);
  attend_any<T>(a, a.tasks[index]);
}

template void attention<float>(const AttentionArgs&, int64_t);
template void attention<bf16>(const AttentionArgs&, int64_t);
template void attention<f16>(const AttentionArgs&, int64_t);
template void attention<int8_t>(const AttentionArgs&, int64_t);
template void attention<f8_e4m3>(const AttentionArgs&, int64_t);
template void attention<f8_e5m2>(const AttentionArgs&, int64_t);

}  // namespace quire::QUIRE_ISA
