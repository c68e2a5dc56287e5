// GEMM of int8 weights and int8 rows of x (W8A8), where there are no tiles.
//
// Sums are exact in int32: k is at most 65536 (PackedWeight), and 255 * 127 * 65536 < 2^31.
#include "gemm_rows.h"

namespace quire::QUIRE_ISA {

namespace {

inline int32_t four(const int8_t* p) {
  int32_t bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return bytes;
}

// Rows of x in the scratch lie apart by this: not a power of two, so that they share no cache set.
int64_t copied_stride(const GemmArgs& a) { return round_up(a.k, kStepBytes) + kStepBytes; }

#if defined(__AVX512VNNI__)

constexpr int kMostRows = 10;  // 20 registers hold sums; more rows want more addresses than there are
constexpr int8_t kFlip = -128;

// vpdpbusd wants x unsigned: 128 is added to x, and 128 * row_sum is what that adds to the sum.
template <int R>
void block(int32_t* sums, const Pass<int8_t>& p) {
  __m512i c[R][2];
  QUIRE_UNROLL for (auto& row : c) {
    row[0] = row[1] = _mm512_setzero_si512();
  }
  const uint8_t* line = p.weight;
  for (int64_t i = 0; i < p.k; i += 64) {
    QUIRE_UNROLL for (int tile = 0; tile < 2; ++tile) {
      for (const int8_t* x = p.x + i; x < p.x + i + 64; x += 4, line += 64) {
        fetch(line, p.ahead);
        const __m512i w = _mm512_loadu_si512(line);
        QUIRE_UNROLL for (int r = 0; r < R; ++r) {
          const __m512i v = _mm512_set1_epi32(four(x + r * p.stride));
          c[r][tile] = _mm512_dpbusd_epi32(c[r][tile], v, w);
        }
      }
    }
  }
  QUIRE_UNROLL for (int r = 0; r < R; ++r) {
    for (int h = 0; h < 2; ++h) {
      const __m512i extra = _mm512_slli_epi32(_mm512_loadu_si512(p.row_sum + h * 16), 7);
      _mm512_storeu_si512(sums + r * kBlockRows + h * 16, _mm512_sub_epi32(c[r][h], extra));
    }
  }
}

#elif defined(__AVX2__)

constexpr int kMostRows = 2;
constexpr int8_t kFlip = 0;

// vpmaddubsw wants one side unsigned: |x| * (W with the sign of x). Two products fit 16 bits, since
// |q| of a weight is at most 127, and of x at most 128.
template <int R>
void block(int32_t* sums, const Pass<int8_t>& p) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i c[R][4];
  QUIRE_UNROLL for (auto& row : c) {
    QUIRE_UNROLL for (__m256i& v : row) v = _mm256_setzero_si256();
  }
  const uint8_t* line = p.weight;
  for (int64_t i = 0; i < p.k; i += 64) {
    QUIRE_UNROLL for (int tile = 0; tile < 2; ++tile) {
      for (const int8_t* x = p.x + i; x < p.x + i + 64; x += 4, line += 64) {
        fetch(line, p.ahead);
        QUIRE_UNROLL for (int r = 0; r < R; ++r) {
          const __m256i v = _mm256_set1_epi32(four(x + r * p.stride));
          const __m256i size = _mm256_abs_epi8(v);
          QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
            const auto* at = reinterpret_cast<const __m256i*>(line + j * 32);
            const __m256i w = _mm256_sign_epi8(_mm256_loadu_si256(at), v);
            const __m256i pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(size, w), ones);
            c[r][2 * tile + j] = _mm256_add_epi32(c[r][2 * tile + j], pairs);
          }
        }
      }
    }
  }
  QUIRE_UNROLL for (int r = 0; r < R; ++r) {
    QUIRE_UNROLL for (int j = 0; j < 4; ++j) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + r * kBlockRows + j * 8), c[r][j]);
    }
  }
}

#else

constexpr int kMostRows = 1;
constexpr int8_t kFlip = 0;

template <int R>
void block(int32_t* sums, const Pass<int8_t>& p) {
  for (int64_t j = 0; j < kBlockRows; ++j) sums[j] = 0;
  for (int64_t i = 0; i < p.k; i += 4) {
    const uint8_t* line = p.weight + i / 64 * (2 * kTileBytes) + i % 64 / 4 * 64;
    const int8_t* x = p.x + i;
    for (int64_t j = 0; j < kBlockRows; ++j) {
      const auto* w = reinterpret_cast<const int8_t*>(line + j / 16 * kTileBytes + j % 16 * 4);
      sums[j] += w[0] * x[0] + w[1] * x[1] + w[2] * x[2] + w[3] * x[3];
    }
  }
}

#endif

struct S8 {
  using X = int8_t;
  using Sum = int32_t;
  static constexpr int kMost = kMostRows, kStreamRows = 2;

  static Input<int8_t> input(const GemmArgs& a) {
    const int64_t k = round_up(a.k, kStepBytes);
    return {x_s8(a), copied_stride(a), k, k * kBlockRows};
  }

  template <int R>
  static void block(int32_t* sums, const Pass<int8_t>& p) {
    QUIRE_ISA::block<R>(sums, p);
  }
};

int64_t scratch_bytes(const GemmArgs& a) {
  return round_up(a.rows * 4, 64) + a.rows * copied_stride(a);
}

int64_t prepare_tasks(const GemmArgs& a) { return ceil_div(a.rows, kPrepareRows); }

void prepare(const GemmArgs& a, int64_t task) {
  const int64_t last = smaller(a.rows, (task + 1) * kPrepareRows), k = a.k;
  for (int64_t r = task * kPrepareRows; r < last; ++r) {
    int8_t* q = x_s8(a) + r * copied_stride(a);
    x_scales(a)[r] = quantize_row(a, r, q, kStepBytes);
    for (int64_t i = 0; i < k; ++i) q[i] = static_cast<int8_t>(q[i] ^ kFlip);
  }
}

}  // namespace

const Gemm kGemmS8 = {scratch_bytes, prepare_tasks, prepare, row_tasks<S8>, row_task<S8>};

}  // namespace quire::QUIRE_ISA
