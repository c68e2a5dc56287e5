// GEMM with float arithmetic: weights of float32, and of bfloat16 where there are no tiles.
//
// Lanes are output rows, so an output is one chain of multiply-adds in ascending order of k.
#include "gemm_parts.h"

namespace quire::QUIRE_ISA {

namespace {

constexpr int64_t kVecs = kBlockRows / kLanes;
constexpr int64_t kChunk = 64;         // rows of x a task
constexpr int64_t kAhead = 4096;       // bytes of W fetched ahead
constexpr int kMostRows = kLanes == 16 ? 8 : kLanes == 8 ? 2 : 1;  // what the registers hold

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

// sums[R][32] = x · Wᵀ over the first k columns, W a block [k][32].
template <int R>
void block_f32(float* sums, const float* x, int64_t x_stride, const uint8_t* weight, int64_t k) {
  Vec c[R][kVecs];
  for (auto& row : c) {
    for (Vec& v : row) v = zero();
  }
  for (int64_t i = 0; i < k; ++i, weight += kBlockRows * 4) {
    __builtin_prefetch(weight + kAhead);
    __builtin_prefetch(weight + kAhead + 64);
    Vec w[kVecs];
    for (int64_t j = 0; j < kVecs; ++j) {
      w[j] = load(reinterpret_cast<const float*>(weight) + j * kLanes);
    }
    for (int r = 0; r < R; ++r) {
      const Vec v = broadcast(x[r * x_stride + i]);
      for (int64_t j = 0; j < kVecs; ++j) c[r][j] = fma(v, w[j], c[r][j]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int64_t j = 0; j < kVecs; ++j) store(sums + r * kBlockRows + j * kLanes, c[r][j]);
  }
}

// The same for a block of bf16; k is a multiple of 32.
template <int R>
void block_bf16(float* sums, const float* x, int64_t x_stride, const uint8_t* weight, int64_t k) {
  Vec c[R][kVecs];
  for (auto& row : c) {
    for (Vec& v : row) v = zero();
  }
  for (int64_t i = 0; i < k; i += 2) {
    const uint8_t* line = weight + i / 32 * (2 * kTileBytes) + i % 32 / 2 * 64;
    __builtin_prefetch(line + kAhead);
    __builtin_prefetch(line + kAhead + kTileBytes);
    for (int64_t j = 0; j < kVecs; ++j) {
      const int64_t lane = j * kLanes;
      Vec even, odd;
      split(line + lane / 16 * kTileBytes + lane % 16 * 4, even, odd);
      for (int r = 0; r < R; ++r) {
        c[r][j] = fma(broadcast(x[r * x_stride + i]), even, c[r][j]);
        c[r][j] = fma(broadcast(x[r * x_stride + i + 1]), odd, c[r][j]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int64_t j = 0; j < kVecs; ++j) store(sums + r * kBlockRows + j * kLanes, c[r][j]);
  }
}

using Block = void (*)(float*, const float*, int64_t, const uint8_t*, int64_t);

// A task: the rows of one chunk against one block.
template <int kMost>
void multiply(const GemmArgs& a, int64_t task, const float* x, int64_t x_stride, int64_t k,
              int64_t block_bytes, Block most, Block one) {
  const int64_t chunks = ceil_div(a.rows, kChunk);
  const int64_t block = task / chunks;
  const int64_t first = task % chunks * kChunk;
  const int64_t last = smaller(a.rows, first + kChunk);
  const uint8_t* weight = static_cast<const uint8_t*>(a.weight) + block * block_bytes;
  float sums[kMost * kBlockRows];
  for (int64_t r = first; r < last;) {
    const int64_t rows = last - r >= kMost ? kMost : 1;
    (rows == kMost ? most : one)(sums, x + r * x_stride, x_stride, weight, k);
    finish(a, r, rows, block * kBlockRows, sums);
    r += rows;
  }
}

int64_t tasks(const GemmArgs& a) {
  return a.rows == 0 ? 0 : ceil_div(a.n, kBlockRows) * ceil_div(a.rows, kChunk);
}

// The scratch of both kinds: x as floats, rounded to the weight's type, rows of k padded.
int64_t padded_k(const GemmArgs& a) { return round_up(a.k, 32); }
int64_t floats_of_x(const GemmArgs& a) { return a.rows * padded_k(a) * 4; }

template <class Weight, class T>
void widen_rows(const GemmArgs& a, int64_t task) {
  const int64_t last = smaller(a.rows, (task + 1) * kPrepareRows);
  for (int64_t r = task * kPrepareRows; r < last; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    float* out = static_cast<float*>(a.scratch) + r * padded_k(a);
    int64_t i = 0;
    for (; i + kLanes <= a.k; i += kLanes) store(out + i, round<Weight>(load(x + i)));
    if (i < a.k) store(out + i, round<Weight>(load(x + i, a.k - i)), a.k - i);
    for (i = a.k; i < padded_k(a); ++i) out[i] = 0.0f;
  }
}

// float32: x needs no preparation unless it is bf16.
int64_t f32_scratch_bytes(const GemmArgs& a) {
  return a.x_dtype == kFloat32 ? 0 : floats_of_x(a);
}
int64_t f32_prepare_tasks(const GemmArgs& a) {
  return a.x_dtype == kFloat32 ? 0 : ceil_div(a.rows, kPrepareRows);
}
void f32_task(const GemmArgs& a, int64_t task) {
  const bool ready = a.x_dtype == kFloat32;
  multiply<kMostRows>(a, task, static_cast<const float*>(ready ? a.x : a.scratch),
                      ready ? a.x_stride : padded_k(a), a.k, a.k * kBlockRows * 4,
                      block_f32<kMostRows>, block_f32<1>);
}

int64_t bf16_prepare_tasks(const GemmArgs& a) { return ceil_div(a.rows, kPrepareRows); }
void bf16_prepare(const GemmArgs& a, int64_t task) {
  if (a.x_dtype == kFloat32) {
    widen_rows<bf16, float>(a, task);
  } else {
    widen_rows<float, bf16>(a, task);  // is bf16 already
  }
}
void bf16_task(const GemmArgs& a, int64_t task) {
  multiply<kMostRows>(a, task, static_cast<const float*>(a.scratch), padded_k(a), padded_k(a),
                      padded_k(a) * kBlockRows * 2, block_bf16<kMostRows>, block_bf16<1>);
}

}  // namespace

const Gemm kGemmF32 = {f32_scratch_bytes, f32_prepare_tasks, widen_rows<float, bf16>, tasks,
                       f32_task};
const Gemm kGemmBF16 = {floats_of_x, bf16_prepare_tasks, bf16_prepare, tasks, bf16_task};

}  // namespace quire::QUIRE_ISA
