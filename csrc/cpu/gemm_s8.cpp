// GEMM of int8 weights and int8 rows of x (W8A8), where there are no tiles.
//
// Sums are exact in int32: k is at most 65536 (PackedWeight), and 255 * 127 * 65536 < 2^31.
#include "gemm_parts.h"

namespace quire::QUIRE_ISA {

namespace {

constexpr int64_t kChunk = 128;   // rows of x a task
constexpr int64_t kAhead = 4096;  // bytes of W fetched ahead

inline int32_t four(const int8_t* p) {
  int32_t bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return bytes;
}

// sums[R][32] = x · Wᵀ for R rows of `k` (padded) int8 values against one block.
#if defined(__AVX512VNNI__)

constexpr int kMostRows = 8;

// vpdpbusd wants x unsigned: 128 is added to x, and 128 * row_sum is what that adds to the sum.
template <int R>
void block(int32_t* sums, const int8_t* x, const uint8_t* weight, const int32_t* row_sum,
           int64_t k) {
  __m512i c[R][2];
  for (auto& row : c) row[0] = row[1] = _mm512_setzero_si512();
  for (int64_t i = 0; i < k; i += 4) {
    const uint8_t* line = weight + i / 64 * (2 * kTileBytes) + i % 64 / 4 * 64;
    __builtin_prefetch(line + kAhead);
    __builtin_prefetch(line + kAhead + kTileBytes);
    const __m512i low = _mm512_loadu_si512(line);
    const __m512i high = _mm512_loadu_si512(line + kTileBytes);
    for (int r = 0; r < R; ++r) {
      const __m512i v = _mm512_set1_epi32(four(x + r * k + i) ^ static_cast<int>(0x80808080));
      c[r][0] = _mm512_dpbusd_epi32(c[r][0], v, low);
      c[r][1] = _mm512_dpbusd_epi32(c[r][1], v, high);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int h = 0; h < 2; ++h) {
      const __m512i extra = _mm512_slli_epi32(_mm512_loadu_si512(row_sum + h * 16), 7);
      _mm512_storeu_si512(sums + r * kBlockRows + h * 16, _mm512_sub_epi32(c[r][h], extra));
    }
  }
}

#elif defined(__AVX2__)

constexpr int kMostRows = 2;

// vpmaddubsw wants one side unsigned: |x| * (W with the sign of x). Two products fit 16 bits, since
// |q| of a weight is at most 127, and of x at most 128.
template <int R>
void block(int32_t* sums, const int8_t* x, const uint8_t* weight, const int32_t*, int64_t k) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i c[R][4];
  for (auto& row : c) {
    for (__m256i& v : row) v = _mm256_setzero_si256();
  }
  for (int64_t i = 0; i < k; i += 4) {
    const uint8_t* line = weight + i / 64 * (2 * kTileBytes) + i % 64 / 4 * 64;
    __builtin_prefetch(line + kAhead);
    __builtin_prefetch(line + kAhead + kTileBytes);
    for (int r = 0; r < R; ++r) {
      const __m256i v = _mm256_set1_epi32(four(x + r * k + i));
      const __m256i size = _mm256_abs_epi8(v);
      for (int j = 0; j < 4; ++j) {
        const auto* at = reinterpret_cast<const __m256i*>(line + j / 2 * kTileBytes + j % 2 * 32);
        const __m256i w = _mm256_sign_epi8(_mm256_loadu_si256(at), v);
        const __m256i pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(size, w), ones);
        c[r][j] = _mm256_add_epi32(c[r][j], pairs);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < 4; ++j) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + r * kBlockRows + j * 8), c[r][j]);
    }
  }
}

#else

constexpr int kMostRows = 1;

template <int R>
void block(int32_t* sums, const int8_t* x, const uint8_t* weight, const int32_t*, int64_t k) {
  for (int64_t j = 0; j < kBlockRows; ++j) sums[j] = 0;
  for (int64_t i = 0; i < k; i += 4) {
    const auto* line = reinterpret_cast<const int8_t*>(weight) + i / 64 * (2 * kTileBytes) +
                       i % 64 / 4 * 64;
    for (int64_t j = 0; j < kBlockRows; ++j) {
      const int8_t* w = line + j / 16 * kTileBytes + j % 16 * 4;
      sums[j] += w[0] * x[i] + w[1] * x[i + 1] + w[2] * x[i + 2] + w[3] * x[i + 3];
    }
  }
}

#endif

int64_t prepare_tasks(const GemmArgs& a) { return ceil_div(a.rows, kPrepareRows); }

void prepare(const GemmArgs& a, int64_t task) {
  const int64_t last = smaller(a.rows, (task + 1) * kPrepareRows);
  for (int64_t r = task * kPrepareRows; r < last; ++r) {
    x_scales(a)[r] = quantize_row(a, r, x_s8(a) + r * s8_bytes(a), kStepBytes);
  }
}

int64_t tasks(const GemmArgs& a) {
  return a.rows == 0 ? 0 : ceil_div(a.n, kBlockRows) * ceil_div(a.rows, kChunk);
}

void task(const GemmArgs& a, int64_t index) {
  const int64_t k = s8_bytes(a), chunks = ceil_div(a.rows, kChunk);
  const int64_t n0 = index / chunks * kBlockRows, first = index % chunks * kChunk;
  const int64_t last = smaller(a.rows, first + kChunk);
  const uint8_t* weight = static_cast<const uint8_t*>(a.weight) + n0 * k;
  int32_t sums[kMostRows * kBlockRows];
  for (int64_t r = first; r < last;) {
    const int64_t rows = last - r >= kMostRows ? kMostRows : 1;
    (rows == kMostRows ? block<kMostRows> : block<1>)(sums, x_s8(a) + r * k, weight,
                                                      a.row_sum + n0, k);
    finish(a, r, rows, n0, sums, x_scales(a) + r);
    r += rows;
  }
}

}  // namespace

const Gemm kGemmS8 = {s8_scratch_bytes, prepare_tasks, prepare, tasks, task};

}  // namespace quire::QUIRE_ISA
