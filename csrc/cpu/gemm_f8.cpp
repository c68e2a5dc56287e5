// GEMM of 8-bit floats (E4M3, E5M2) under bfloat16 x. Sums are float32; a row of W has one scale, or
// one for each group of k, which the group's sum is multiplied by.
//
// Codes become bfloat16 exactly. Few rows of x decode W as it passes by; more than a pass holds
// decode a slice of it, 128 of k, into the L1 cache, for all of a task's rows. Either way the sums
// of an output are the same additions in the same order.
#include "gemm_rows.h"
#include "simd_float8.h"

namespace quire::QUIRE_ISA {

namespace {

constexpr int64_t kSlice = 128;  // of k, decoded at once; a multiple of every group
constexpr int64_t kChunk = 120;  // most rows of x a task
constexpr int64_t kQuad = 2 * 64;  // bytes of 4 values of k

int64_t padded_k(const GemmArgs& a) { return round_up(a.k, 32); }
int64_t groups_of(const GemmArgs& a) { return a.group == 0 ? 1 : ceil_div(a.k, a.group); }

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)

// Lanes are output rows; a product adds two columns of x.
using X = bf16;
constexpr int kMostRows = 10;  // more want more addresses than there are registers for
constexpr bool kDirect = true;
constexpr int64_t kDecodedBytes = 4;  // of a slice, for each 2 of k and output row

inline __m512bh two(const bf16* p) {
  int32_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
}

// Where W is read from: two lines of pairs of k at a time.
template <class F8>
struct Coded {
  static constexpr int64_t kBytes = 64;
  Float8Pairs<F8> pairs;

  void read(const uint8_t* p, __m512i (&lines)[2]) const {
    pairs.widen(_mm512_loadu_si512(p), lines[0], lines[1]);
  }
};
template <class F8>
Coded<F8> coded() {
  return {};
}
struct Decoded {
  static constexpr int64_t kBytes = 128;
  void read(const uint8_t* p, __m512i (&lines)[2]) const {
    lines[0] = _mm512_loadu_si512(p);
    lines[1] = _mm512_loadu_si512(p + 64);
  }
};

template <class F8>
void decode(const uint8_t* from, int64_t k, uint8_t* to) {
  const Coded<F8> source{};
  for (int64_t i = 0; i < k * 32; i += 64, to += 128) {
    fetch(from + i, kStreamAhead);
    __m512i lines[2];
    source.read(from + i, lines);
    _mm512_store_si512(to, lines[0]);
    _mm512_store_si512(to + 64, lines[1]);
  }
}

// sums[R][32] += x · W over k columns; with a scale, += scale * (x · W).
template <int R, class Source>
void add(float* sums, const X* x, int64_t stride, const uint8_t* w, int64_t k, const float* scale,
         const Source& source, int64_t ahead) {
  __m512 c[R][2];
  QUIRE_UNROLL for (int r = 0; r < R; ++r) {
    for (int t = 0; t < 2; ++t) {
      c[r][t] = scale == nullptr ? load(sums + r * kBlockRows + t * 16) : zero();
    }
  }
  for (const X* const end = x + k; x < end; x += 4) {
    QUIRE_UNROLL for (int t = 0; t < 2; ++t, w += Source::kBytes) {
      if (Source::kBytes == 64) fetch(w, ahead);
      __m512i lines[2];
      source.read(w, lines);
      QUIRE_UNROLL for (int h = 0; h < 2; ++h) {
        const __m512bh pairs = reinterpret_cast<__m512bh>(lines[h]);
        QUIRE_UNROLL for (int r = 0; r < R; ++r) {
          c[r][t] = _mm512_dpbf16_ps(c[r][t], two(x + r * stride + 2 * h), pairs);
        }
      }
    }
  }
  QUIRE_UNROLL for (int r = 0; r < R; ++r) {
    for (int t = 0; t < 2; ++t) {
      float* const to = sums + r * kBlockRows + t * 16;
      store(to, scale == nullptr ? c[r][t] : fma(load(scale + t * 16), c[r][t], load(to)));
    }
  }
}

bool in_place(const GemmArgs& a) {
  return a.x_dtype == kBFloat16 && a.rows <= 3 * kMostRows && a.k % 32 == 0;
}

inline void made_ready(X*, int64_t) {}

#else

// Lanes are output rows, in floats.
using X = float;
constexpr int kMostRows = kLanes == 16 ? 12 : kLanes == 8 ? 6 : 2;
constexpr bool kDirect = false;
constexpr int64_t kDecodedBytes = 8;

struct Decoded {};
template <class F8>
Decoded coded();  // never: W is decoded first

// Four columns of kLanes output rows, from the bytes that hold them.
#if defined(__AVX512F__)
template <class F8>
inline void four_columns(const uint8_t* p, Vec (&v)[4]) {
  const __m512i codes = _mm512_loadu_si512(p), none = _mm512_setzero_si512();
  const __m512i left = _mm512_unpacklo_epi16(none, codes), right = _mm512_unpackhi_epi16(none, codes);
  v[0] = widen8<F8>(_mm512_slli_epi32(left, 8));
  v[1] = widen8<F8>(left);
  v[2] = widen8<F8>(_mm512_slli_epi32(right, 8));
  v[3] = widen8<F8>(right);
}
#elif defined(__AVX2__)
template <class F8>
inline void four_columns(const uint8_t* p, Vec (&v)[4]) {
  const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i none = _mm256_setzero_si256();
  const __m256i left = _mm256_unpacklo_epi16(none, codes), right = _mm256_unpackhi_epi16(none, codes);
  v[0] = widen8<F8>(_mm256_slli_epi32(left, 8));
  v[1] = widen8<F8>(left);
  v[2] = widen8<F8>(_mm256_slli_epi32(right, 8));
  v[3] = widen8<F8>(right);
}
#else
template <class F8>
inline void four_columns(const uint8_t* p, Vec (&v)[4]) {
  Half pairs[2];
  __builtin_memcpy(pairs, p, sizeof pairs);
  for (int h = 0; h < 2; ++h) {
    const Bits both = __builtin_convertvector(pairs[h], Bits);
    v[2 * h] = widen8<F8>(both << 24);
    v[2 * h + 1] = widen8<F8>(both << 16);
  }
}
#endif

// [k][32 rows].
template <class F8>
void decode(const uint8_t* from, int64_t k, uint8_t* bytes) {
  float* to = reinterpret_cast<float*>(bytes);
  for (int64_t i = 0; i < k; i += 4, to += 4 * kBlockRows) {
    for (int64_t n = 0; n < kBlockRows; n += kLanes, from += 4 * kLanes) {
      if (n % 16 == 0) fetch(from, kStreamAhead);
      Vec v[4];
      four_columns<F8>(from, v);
      for (int j = 0; j < 4; ++j) store(to + j * kBlockRows + n, v[j]);
    }
  }
}

template <int R, int64_t V>
void add_lanes(float* sums, const X* x, int64_t stride, const float* w, int64_t k,
               const float* scale) {
  Vec c[R][V];
  QUIRE_UNROLL for (int r = 0; r < R; ++r) {
    QUIRE_UNROLL for (int64_t j = 0; j < V; ++j) {
      c[r][j] = scale == nullptr ? load(sums + r * kBlockRows + j * kLanes) : zero();
    }
  }
  for (int64_t i = 0; i < k; ++i, w += kBlockRows) {
    QUIRE_UNROLL for (int64_t j = 0; j < V; ++j) {
      const Vec v = load(w + j * kLanes);
      QUIRE_UNROLL for (int r = 0; r < R; ++r) c[r][j] = fma(broadcast(x[r * stride + i]), v, c[r][j]);
    }
  }
  QUIRE_UNROLL for (int r = 0; r < R; ++r) {
    QUIRE_UNROLL for (int64_t j = 0; j < V; ++j) {
      float* const to = sums + r * kBlockRows + j * kLanes;
      store(to, scale == nullptr ? c[r][j] : fma(load(scale + j * kLanes), c[r][j], load(to)));
    }
  }
}

template <int R, class Source>
void add(float* sums, const X* x, int64_t stride, const uint8_t* w, int64_t k, const float* scale,
         const Source&, int64_t) {
  constexpr int64_t kVecs = kBlockRows / kLanes;
  constexpr int64_t kWide = kLanes == 16 ? 12 : kLanes == 8 ? 2 : 1;  // rows that take all columns
  constexpr int64_t kAtOnce = R <= kWide ? kVecs : kVecs / 2;
  for (int64_t j = 0; j < kVecs; j += kAtOnce) {
    const int64_t n = j * kLanes;
    add_lanes<R, kAtOnce>(sums + n, x, stride, reinterpret_cast<const float*>(w) + n, k,
                          scale == nullptr ? nullptr : scale + n);
  }
}

bool in_place(const GemmArgs&) { return false; }

// The bfloat16 at the row's end as floats, from its beginning on.
inline void made_ready(X* row, int64_t k) {
  const bf16* const rounded = reinterpret_cast<const bf16*>(row) + k;
  for (int64_t i = 0; i < k; i += kLanes) store(row + i, load(rounded + i));
}

#endif

template <int R, class Source>
inline void add_rows(int64_t rows, float* sums, const X* x, int64_t stride, const uint8_t* w,
                     int64_t k, const float* scale, const Source& source, int64_t ahead) {
  if constexpr (R > 1) {
    if (rows < R) return add_rows<R - 1>(rows, sums, x, stride, w, k, scale, source, ahead);
  }
  add<R>(sums, x, stride, w, k, scale, source, ahead);
}

// Not a power of two: the rows of a pass share no cache set.
int64_t copied_stride(const GemmArgs& a) { return padded_k(a) + 32; }

struct F8Input {
  const X* x;
  int64_t stride;

  explicit F8Input(const GemmArgs& a)
      : x(static_cast<const X*>(in_place(a) ? a.x : a.scratch)),
        stride(in_place(a) ? a.x_stride : copied_stride(a)) {}
};

// How a call is cut into tasks: chunks of rows, and groups of blocks of some 128 KiB.
struct F8Cut {
  int64_t pass, chunk_rows, chunks, group_blocks, groups;

  explicit F8Cut(const GemmArgs& a)
      : pass(smaller(tuned(a.tuning.pass_rows, kMostRows), kMostRows)) {
    const int64_t row_bytes = copied_stride(a) * static_cast<int64_t>(sizeof(X));
    const int64_t fitting = tuned(a.tuning.chunk_bytes, kChunk * row_bytes) / row_bytes;
    chunks = larger(ceil_div(a.rows, larger(smaller(fitting, kChunk) / pass, 1) * pass), 1);
    chunk_rows = ceil_div(a.rows, chunks);
    const int64_t blocks = a.n / kBlockRows;
    const int64_t fair = blocks * chunks / (a.threads * tuned(a.tuning.thread_tasks, kThreadTasks));
    const int64_t most = tuned(a.tuning.group_bytes, kGroupBytes) / (padded_k(a) * kBlockRows);
    group_blocks = larger(smaller(most, fair), 1);
    groups = ceil_div(blocks, group_blocks);
  }
};

template <class F8>
struct Block {
  const GemmArgs& a;
  const F8Cut& cut;
  const F8Input& in;
  const uint8_t* weight;
  const float* scale;  // [groups][32], or null

  // What a pass over columns [i, i + k) scales its sums by.
  const float* scale_of(int64_t i) const {
    return scale == nullptr ? nullptr : scale + i / a.group * kBlockRows;
  }

  // sums[last - first][32] += x · W.
  void add(int64_t first, int64_t last, float* sums) const {
    if constexpr (kDirect) {
      if (last - first <= cut.pass) return direct(first, last - first, sums);
    }
    sliced(first, last, sums);
  }

  // The sums of one pass, decoding on the way.
  void direct(int64_t first, int64_t rows, float* sums) const {
    const auto source = coded<F8>();
    const int64_t k = padded_k(a), step = scale == nullptr ? k : a.group;
    // Decoding reads too slowly for the processor to see a stream, even on Zen.
    const int64_t ahead = tuned(a.tuning.ahead_bytes, kStreamAhead);
    for (int64_t i = 0; i < k; i += step) {
      add_rows<kMostRows>(rows, sums, in.x + first * in.stride + i, in.stride,
                          weight + i * kBlockRows, smaller(step, k - i), scale_of(i), source,
                          ahead);
    }
  }

  // The same of any number of passes, slice by slice.
  void sliced(int64_t first, int64_t last, float* sums) const {
    alignas(64) uint8_t decoded[kSlice * kBlockRows / 2 * kDecodedBytes];
    const int64_t k = padded_k(a);
    for (int64_t i = 0; i < k; i += kSlice) {
      const int64_t end = smaller(i + kSlice, k), step = scale == nullptr ? end - i : a.group;
      decode<F8>(weight + i * kBlockRows, end - i, decoded);
      for (int64_t r = first; r < last;) {
        const int64_t rows = ceil_div(last - r, ceil_div(last - r, cut.pass));
        for (int64_t j = i; j < end; j += step) {
          add_rows<kMostRows>(rows, sums + (r - first) * kBlockRows, in.x + r * in.stride + j,
                              in.stride, decoded + (j - i) * kBlockRows / 2 * kDecodedBytes,
                              smaller(step, end - j), scale_of(j), Decoded{}, 0);
        }
        r += rows;
      }
    }
  }
};

template <class F8>
void task(const GemmArgs& a, int64_t index) {
  const F8Cut cut(a);
  const F8Input in(a);
  const int64_t first = index / cut.groups * cut.chunk_rows;
  const int64_t last = smaller(a.rows, first + cut.chunk_rows), rows = last - first;
  const int64_t from = index % cut.groups * cut.group_blocks;
  const int64_t to = smaller(a.n / kBlockRows, from + cut.group_blocks);
  const int64_t groups = groups_of(a);
  alignas(64) float sums[kChunk * kBlockRows];
  for (int64_t b = from; b < to; ++b) {
    const uint8_t* weight = static_cast<const uint8_t*>(a.weight) + b * padded_k(a) * kBlockRows;
    const float* scale = a.group == 0 ? nullptr : a.scale + b * groups * kBlockRows;
    const Block<F8> block{a, cut, in, weight, scale};
    for (int64_t i = 0; i < rows * kBlockRows; i += kLanes) store(sums + i, zero());
    block.add(first, last, sums);
    if (a.group == 0) {
      finish_sums(a, first, rows, b * kBlockRows, sums);
    } else {
      finish(a, first, rows, b * kBlockRows, sums);
    }
  }
}

int64_t tasks(const GemmArgs& a) {
  if (a.rows == 0) return 0;
  const F8Cut cut(a);
  return cut.chunks * cut.groups;
}

int64_t scratch_bytes(const GemmArgs& a) {
  return in_place(a) ? 0 : a.rows * copied_stride(a) * static_cast<int64_t>(sizeof(X));
}
int64_t prepare_tasks(const GemmArgs& a) {
  return in_place(a) ? 0 : ceil_div(a.rows, kPrepareRows);
}

void prepare(const GemmArgs& a, int64_t index) {
  const int64_t last = smaller(a.rows, (index + 1) * kPrepareRows), k = padded_k(a);
  for (int64_t r = index * kPrepareRows; r < last; ++r) {
    X* const row = static_cast<X*>(a.scratch) + r * copied_stride(a);
    const int64_t unused = (static_cast<int64_t>(sizeof(X)) - 2) * k;
    round_row(a, r, reinterpret_cast<uint8_t*>(row) + unused, kStepBytes);
    made_ready(row, k);
  }
}

}  // namespace

const Gemm kGemmF8E4M3 = {scratch_bytes, prepare_tasks, prepare, tasks, task<f8_e4m3>};
const Gemm kGemmF8E5M2 = {scratch_bytes, prepare_tasks, prepare, tasks, task<f8_e5m2>};

}  // namespace quire::QUIRE_ISA
