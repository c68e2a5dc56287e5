// GEMM with float arithmetic: weights of float32, and of bfloat16 where no instruction multiplies it.
//
// Lanes are output rows, so an output is one chain of multiply-adds in ascending order of k.
#include "gemm_rows.h"

namespace quire::QUIRE_ISA {

namespace {

constexpr int64_t kVecs = kBlockRows / kLanes;
// What the registers hold: rows of a pass, and of one that takes all 32 columns at once. More rows
// take 16 columns, twice.
constexpr int kMostRows = kLanes == 16 ? 12 : kLanes == 8 ? 6 : 2;
constexpr int kWideRows = kLanes == 16 ? 12 : kLanes == 8 ? 2 : 1;

// Lanes of 32 bits that hold two bf16, apart.
#if defined(__AVX512F__)
inline void split(const uint8_t* p, Vec& even, Vec& odd) {
  const __m512i both = _mm512_loadu_si512(p);
  even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}
#elif defined(__AVX2__)
inline void split(const uint8_t* p, Vec& even, Vec& odd) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
  odd = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}
#else
inline void split(const uint8_t* p, Vec& even, Vec& odd) {
  Bits both;
  __builtin_memcpy(&both, p, sizeof both);
  even = vec_of(both << 16);
  odd = vec_of(both & all(0xffff0000));
}
#endif

// Weights of one column of x after the other, 32 output rows each.
struct F32 {
  static int64_t padded_k(int64_t k) { return k; }
  static int64_t block_bytes(int64_t k) { return k * kBlockRows * 4; }

  // c[R][V] += x · W for output rows from n on.
  template <int R, int64_t V>
  static void add(Vec (&c)[R][V], const Pass<float>& p, int64_t n) {
    const float* w = reinterpret_cast<const float*>(p.weight);
    for (int64_t i = 0; i < p.k; ++i, w += kBlockRows) {
      fetch(reinterpret_cast<const uint8_t*>(w), p.ahead);
      fetch(reinterpret_cast<const uint8_t*>(w), p.ahead + 64);
      QUIRE_UNROLL for (int64_t j = 0; j < V; ++j) {
        const Vec v = load(w + n + j * kLanes);
        QUIRE_UNROLL for (int r = 0; r < R; ++r) {
          c[r][j] = fma(broadcast(p.x[r * p.stride + i]), v, c[r][j]);
        }
      }
    }
  }
};

// Weights in tiles of 16 output rows and 32 columns of x, two columns side by side.
struct BF16 {
  static int64_t padded_k(int64_t k) { return round_up(k, 32); }
  static int64_t block_bytes(int64_t k) { return padded_k(k) * kBlockRows * 2; }

  template <int R, int64_t V>
  static void add(Vec (&c)[R][V], const Pass<float>& p, int64_t n) {
    constexpr int64_t kTileVecs = 16 / kLanes, kTiles = V / kTileVecs;
    const uint8_t* line = p.weight + n / 16 * kTileBytes;
    for (int64_t i = 0; i < p.k; i += 32, line += (2 - kTiles) * kTileBytes) {
      QUIRE_UNROLL for (int64_t tile = 0; tile < kTiles; ++tile) {
        for (const float* x = p.x + i; x < p.x + i + 32; x += 2, line += 64) {
          fetch(line, p.ahead);
          QUIRE_UNROLL for (int64_t j = 0; j < kTileVecs; ++j) {
            Vec even, odd;
            split(line + j * kLanes * 4, even, odd);
            QUIRE_UNROLL for (int r = 0; r < R; ++r) {
              Vec& sum = c[r][tile * kTileVecs + j];
              sum = fma(broadcast(x[r * p.stride]), even, sum);
              sum = fma(broadcast(x[r * p.stride + 1]), odd, sum);
            }
          }
        }
      }
    }
  }
};

// sums[R][32] for V vectors of output rows from n on.
template <class W, int R, int64_t V>
inline void lanes(float* sums, const Pass<float>& p, int64_t n) {
  Vec c[R][V];
  QUIRE_UNROLL for (auto& row : c) {
    QUIRE_UNROLL for (Vec& v : row) v = zero();
  }
  W::add(c, p, n);
  QUIRE_UNROLL for (int r = 0; r < R; ++r) {
    QUIRE_UNROLL for (int64_t j = 0; j < V; ++j) {
      store(sums + r * kBlockRows + n + j * kLanes, c[r][j]);
    }
  }
}

// x as floats: as it is if it is float32 and as wide as the weight, else copied, rounded if the
// weight's type asks for it.
template <class W>
bool in_place(const GemmArgs& a) {
  return __is_same(W, F32) && a.x_dtype == kFloat32;
}
// Not a power of two: the rows of a pass share no cache set.
template <class W>
int64_t copied_stride(const GemmArgs& a) {
  return W::padded_k(a.k) + 16;
}

template <class W>
struct Floats {
  using X = float;
  using Sum = float;
  static constexpr int kMost = kMostRows;

  static Input<float> input(const GemmArgs& a) {
    const bool ready = in_place<W>(a);
    return {static_cast<const float*>(ready ? a.x : a.scratch),
            ready ? a.x_stride : copied_stride<W>(a), W::padded_k(a.k), W::block_bytes(a.k)};
  }

  template <int R>
  static void block(float* sums, const Pass<float>& p) {
    if constexpr (R <= kWideRows) {
      lanes<W, R, kVecs>(sums, p, 0);
    } else {
      lanes<W, R, kVecs / 2>(sums, p, 0);
      lanes<W, R, kVecs / 2>(sums, p, kBlockRows / 2);
    }
  }
};

template <class W>
int64_t scratch_bytes(const GemmArgs& a) {
  return in_place<W>(a) ? 0 : a.rows * copied_stride<W>(a) * 4;
}
template <class W>
int64_t prepare_tasks(const GemmArgs& a) {
  return in_place<W>(a) ? 0 : ceil_div(a.rows, kPrepareRows);
}

// Rows of x as floats, through the type Rounded.
template <class W, class Rounded, class T>
void widen_rows(const GemmArgs& a, int64_t task) {
  const int64_t last = smaller(a.rows, (task + 1) * kPrepareRows);
  for (int64_t r = task * kPrepareRows; r < last; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    float* out = static_cast<float*>(a.scratch) + r * copied_stride<W>(a);
    int64_t i = 0;
    for (; i + kLanes <= a.k; i += kLanes) store(out + i, round<Rounded>(load(x + i)));
    if (i < a.k) store(out + i, round<Rounded>(load(x + i, a.k - i)), a.k - i);
    for (i = a.k; i < W::padded_k(a.k); ++i) out[i] = 0.0f;
  }
}

template <class W>
void prepare(const GemmArgs& a, int64_t task) {
  if (a.x_dtype == kBFloat16) return widen_rows<W, float, bf16>(a, task);  // rounded already
  widen_rows<W, bf16, float>(a, task);
}

template <class W>
constexpr Gemm kGemm = {scratch_bytes<W>, prepare_tasks<W>, prepare<W>, row_tasks<Floats<W>>,
                        row_task<Floats<W>>};

}  // namespace

const Gemm kGemmF32 = kGemm<F32>;
#if !defined(__AVX512BF16__)
const Gemm kGemmBF16 = kGemm<BF16>;
#endif

}  // namespace quire::QUIRE_ISA
