// GEMM with float arithmetic: weights of float32 and float16. If no instruction multiplies bfloat16,
// also bfloat16 weights, and int8 weights with bfloat16 x (s8_a16).
//
// Lanes are output rows, so an output is one chain of multiply-adds in ascending order of k.
#include "gemm_rows.h"

namespace quire::QUIRE_ISA {

namespace {

constexpr int64_t kVecs = kBlockRows / kLanes;

// Weights of one column of x after the other, 32 output rows each.
template <class T>
struct Columns {
  static constexpr bool kRoundX = false;
  static constexpr int kMostRows = kFloatRows;
  static constexpr int kWideRows = kLanes == 16 ? 12 : kLanes == 8 ? 2 : 1;  // sums fit into registers
  static int64_t padded_k(int64_t k) { return k; }
  static int64_t block_bytes(int64_t k) {
    return k * kBlockRows * static_cast<int64_t>(sizeof(T));
  }

  // c[R][kVecs] += x · W. More than kWideRows rows take the halves of some lines in turns, from the L1
  // cache: W comes from memory in its order, once.
  template <int R>
  static void add(Vec (&c)[R][kVecs], const Pass<float>& p) {
    constexpr int64_t kAtOnce = R <= kWideRows ? kVecs : kVecs / 2;
    const int64_t lines = kAtOnce == kVecs ? p.k : 64;
    for (int64_t begin = 0; begin < p.k; begin += lines) {
      const int64_t end = smaller(p.k, begin + lines);
      QUIRE_UNROLL for (int64_t first = 0; first < kVecs; first += kAtOnce) {
        Vec sums[R][kAtOnce];
        QUIRE_UNROLL for (int r = 0; r < R; ++r) {
          QUIRE_UNROLL for (int64_t j = 0; j < kAtOnce; ++j) sums[r][j] = c[r][first + j];
        }
        const T* w = reinterpret_cast<const T*>(p.weight) + begin * kBlockRows;
        for (int64_t i = begin; i < end; ++i, w += kBlockRows) {
          constexpr int64_t kLine = 64 / sizeof(T);
          for (int64_t line = 0; first == 0 && line < kBlockRows; line += kLine) {
            fetch(reinterpret_cast<const uint8_t*>(w + line), p.ahead);
          }
          QUIRE_UNROLL for (int64_t j = 0; j < kAtOnce; ++j) {
            const Vec v = load(w + (first + j) * kLanes);
            QUIRE_UNROLL for (int r = 0; r < R; ++r) {
              sums[r][j] = fma(broadcast(p.x[r * p.stride + i]), v, sums[r][j]);
            }
          }
        }
        QUIRE_UNROLL for (int r = 0; r < R; ++r) {
          QUIRE_UNROLL for (int64_t j = 0; j < kAtOnce; ++j) c[r][first + j] = sums[r][j];
        }
        __asm__("" : "+m"(c));  // else the other half's sums take registers from this one's
      }
    }
  }
};

// The same for weights in tiles: a line has two adjacent columns of x for 16 output rows.
template <class Line>
struct Tiles {
  static constexpr bool kRoundX = true;
  // Twelve sums of six rows, two vectors of W and one of x leave AVX2 no register for the mask.
  static constexpr int kMostRows = kFloatRows;
  static constexpr int64_t kLineTileBytes = 16 * Line::kBytes;
  static int64_t padded_k(int64_t k) { return round_up(k, 32); }
  static int64_t block_bytes(int64_t k) { return padded_k(k) * Line::kBytes; }

  // Adds the products of one column of a line.
  template <Vec (*half)(const uint8_t*), int R, int64_t V>
  static void add_half(Vec (&sums)[R][V], const uint8_t* line, const float* x, int64_t stride) {
    Vec w[V];
    QUIRE_UNROLL for (int64_t j = 0; j < V; ++j) w[j] = half(line + j * kLanes * Line::kBytes / 16);
    QUIRE_UNROLL for (int r = 0; r < R; ++r) {
      const Vec each = broadcast(x[r * stride]);
      QUIRE_UNROLL for (int64_t j = 0; j < V; ++j) sums[r][j] = fma(each, w[j], sums[r][j]);
    }
  }

  // One tile after the other: the sums of both would not fit into the registers.
  template <int R>
  static void add(Vec (&c)[R][kVecs], const Pass<float>& p) {
    constexpr int64_t kTileVecs = kVecs / 2;
    const uint8_t* line = p.weight;
    for (int64_t i = 0; i < p.k; i += 32) {
      QUIRE_UNROLL for (int64_t first = 0; first < kVecs; first += kTileVecs) {
        Vec sums[R][kTileVecs];
        QUIRE_UNROLL for (int r = 0; r < R; ++r) {
          QUIRE_UNROLL for (int64_t j = 0; j < kTileVecs; ++j) sums[r][j] = c[r][first + j];
        }
        for (const float* x = p.x + i; x < p.x + i + 32; x += 2, line += Line::kBytes) {
          fetch(line, p.ahead);
          // Apart, so that a pass keeps its sums, half a line and one x in registers.
          add_half<Line::even>(sums, line, x, p.stride);
          add_half<Line::odd>(sums, line, x + 1, p.stride);
        }
        QUIRE_UNROLL for (int r = 0; r < R; ++r) {
          QUIRE_UNROLL for (int64_t j = 0; j < kTileVecs; ++j) c[r][first + j] = sums[r][j];
        }
        __asm__("" : "+m"(c));  // else the other tile's sums take registers from this one's
      }
    }
  }
};

// `even` and `odd`: the first and the second values of the pairs of kLanes output rows.
struct BF16Line {
  static constexpr int64_t kBytes = 64;
#if defined(__AVX512F__)
  static __m512i both(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static Vec even(const uint8_t* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(both(p), 16)); }
  static Vec odd(const uint8_t* p) {
    return _mm512_castsi512_ps(_mm512_and_si512(both(p), _mm512_set1_epi32(-0x10000)));
  }
#elif defined(__AVX2__)
  static __m256i both(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Vec even(const uint8_t* p) { return _mm256_castsi256_ps(_mm256_slli_epi32(both(p), 16)); }
  static Vec odd(const uint8_t* p) {
    return _mm256_castsi256_ps(_mm256_and_si256(both(p), _mm256_set1_epi32(-0x10000)));
  }
#else
  static Bits both(const uint8_t* p) {
    Bits bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return bits;
  }
  static Vec even(const uint8_t* p) { return vec_of(both(p) << 16); }
  static Vec odd(const uint8_t* p) { return vec_of(both(p) & all(0xffff0000)); }
#endif
};

struct S8Line {
  static constexpr int64_t kBytes = 32;
#if defined(__AVX512F__)
  static __m512i both(const uint8_t* p) {
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Vec even(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(both(p), 24), 24));
  }
  static Vec odd(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_srai_epi32(both(p), 8)); }
#elif defined(__AVX2__)
  static __m256i both(const uint8_t* p) {
    return _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Vec even(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(both(p), 24), 24));
  }
  static Vec odd(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_srai_epi32(both(p), 8)); }
#elif defined(QUIRE_NEON)
  static int16x4_t both(const uint8_t* p) { return vld1_s16(reinterpret_cast<const int16_t*>(p)); }
  static Vec even(const uint8_t* p) {
    return floats(vmovl_s16(vshr_n_s16(vshl_n_s16(both(p), 8), 8)));
  }
  static Vec odd(const uint8_t* p) { return floats(vmovl_s16(vshr_n_s16(both(p), 8))); }
#else
  template <int first>
  static Vec every_other(const uint8_t* p) {
    const auto* q = reinterpret_cast<const int8_t*>(p) + first;
    Vec v;
    for (int64_t j = 0; j < kLanes; ++j) v[j] = q[2 * j];
    return v;
  }
  static Vec even(const uint8_t* p) { return every_other<0>(p); }
  static Vec odd(const uint8_t* p) { return every_other<1>(p); }
#endif
};

// x as floats: in place, or copied, padded, and rounded to bfloat16 if the weight requires it.
template <class W>
bool in_place(const GemmArgs& a) {
  return !W::kRoundX && a.x_dtype == kFloat32;
}
// Not a power of two, so that the rows of a pass share no cache set.
template <class W>
int64_t copied_stride(const GemmArgs& a) {
  return W::padded_k(a.k) + 16;
}

template <class W>
struct Floats {
  using X = float;
  using Sum = float;
  static constexpr int kMost = W::kMostRows, kStreamRows = kLanes == 8 ? 2 : 4;

  static Input<float> input(const GemmArgs& a) {
    const int64_t k = W::padded_k(a.k), bytes = W::block_bytes(a.k);
    if (in_place<W>(a)) return {static_cast<const float*>(a.x), a.x_stride, k, bytes};
    return {static_cast<const float*>(a.scratch), copied_stride<W>(a), k, bytes};
  }

  template <int R>
  static void block(float* sums, const Pass<float>& p) {
    Vec c[R][kVecs];
    QUIRE_UNROLL for (auto& row : c) {
      QUIRE_UNROLL for (Vec& v : row) v = zero();
    }
    W::add(c, p);
    QUIRE_UNROLL for (int r = 0; r < R; ++r) {
      QUIRE_UNROLL for (int64_t j = 0; j < kVecs; ++j) {
        store(sums + r * kBlockRows + j * kLanes, c[r][j]);
      }
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

template <class W, class T>
void widen_rows(const GemmArgs& a, int64_t task) {
  const int64_t last = smaller(a.rows, (task + 1) * kPrepareRows);
  const auto widened = [](Vec v) { return W::kRoundX ? round<bf16>(v) : v; };
  for (int64_t r = task * kPrepareRows; r < last; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    float* out = static_cast<float*>(a.scratch) + r * copied_stride<W>(a);
    int64_t i = 0;
    for (; i + kLanes <= a.k; i += kLanes) store(out + i, widened(load(x + i)));
    if (i < a.k) store(out + i, widened(load(x + i, a.k - i)), a.k - i);
    for (i = a.k; i < W::padded_k(a.k); ++i) out[i] = 0.0f;
  }
}

template <class W>
void prepare(const GemmArgs& a, int64_t task) {
  switch (a.x_dtype) {
    case kFloat32: return widen_rows<W, float>(a, task);
    case kFloat16: return widen_rows<W, f16>(a, task);
    default: return widen_rows<W, bf16>(a, task);
  }
}

template <class W>
constexpr Gemm kGemm = {scratch_bytes<W>, prepare_tasks<W>, prepare<W>, row_tasks<Floats<W>>,
                        row_task<Floats<W>>};

}  // namespace

const Gemm kGemmF32 = kGemm<Columns<float>>;
const Gemm kGemmF16 = kGemm<Columns<f16>>;
#if !defined(__AVX512BF16__) && !defined(QUIRE_NEON_BF16)
const Gemm kGemmBF16 = kGemm<Tiles<BF16Line>>;
#endif
#if !defined(__AVX512BF16__)
const Gemm kGemmS8A16 = kGemm<Tiles<S8Line>>;
#endif

}  // namespace quire::QUIRE_ISA
