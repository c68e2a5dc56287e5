// GEMM of weights in groups on AMX tiles. Few rows take VNNI: the sums of a group are exact, so both
// give the same bits.
//
// A group of a block is unpacked to bytes once for all rows of a chunk, and stays in tile registers
// while the tiles of x pass by.
#include "grouped_parts.h"

namespace quire::QUIRE_ISA {

namespace {

constexpr int64_t kFewRows = 4;
constexpr int64_t kAhead = 8192;  // bytes of W fetched ahead
constexpr int64_t kWideBytes = 1 << 20;
constexpr int kTurns = 2;         // tiles: one is computed while the products of the other are added

// Tile registers: 0 1 the sums of 16 x 32 outputs, 2 3 rows of x, 4 5 / 6 7 a step of W each.
void configure(int64_t group) {
  const uint16_t bytes = static_cast<uint16_t>(smaller(group, kStepBytes));
  const uint8_t lines = static_cast<uint8_t>(bytes / 4);
  configure(TileConfig{.row_bytes = {64, 64, bytes, bytes, 64, 64, 64, 64},
                       .rows = {16, 16, 16, 16, lines, lines, lines, lines}});
}

// The codes of a group as steps of two tiles of bytes.
template <class C>
void unpack(const C& codes, uint8_t* steps, const uint8_t* lines, int64_t group, int64_t ahead) {
  for (int64_t i = 0; i < group; i += kCodeStep, lines += C::kLines * 64) {
    for (int line = 0; line < C::kLines; ++line) __builtin_prefetch(lines + line * 64 + ahead, 0, 2);
    uint8_t* to = steps + i / kStepBytes * (2 * kTileBytes) + i % kStepBytes / 4 * 64;
    const auto put = [&](int j, const Pair& p) {
      __builtin_memcpy(to + j * 64, &p.low, 64);
      __builtin_memcpy(to + kTileBytes + j * 64, &p.high, 64);
    };
    put(0, codes.template pair<0>(lines));
    put(1, codes.template pair<1>(lines));
    put(2, codes.template pair<2>(lines));
    put(3, codes.template pair<3>(lines));
  }
}

// A tile's products of a group, which are added to the sums behind those of the next tile: what tiles
// store can be loaded some time later.
struct Products {
  int64_t g, first, rows = 0;  // of x
  const uint8_t* head;         // of the group
  float* sums;
  alignas(64) int32_t dots[kGroupedTileRows * kBlockRows];

  void add(const GemmArgs& a, const GroupedX& x) {
    if (rows == 0) return;
    a.second == kNoSecond ? add_as<false>(a, x) : add_as<true>(a, x);
    rows = 0;
  }

 private:
  // What is read for each row is in variables: stores to the sums could change it elsewhere.
  template <bool kSecond>
  void add_as(const GemmArgs& a, const GroupedX& x) {
    const GroupEnd low(a, head, 0), high(a, head, 16);
    const int64_t groups = x.groups, at = first * groups + g;
    const int32_t *start = x.start + at, *dot = dots;
    const float* x_sum = x.sum + at;
    float* sum = sums;
    for (int64_t i = rows; i > 0; --i, sum += kBlockRows, dot += kBlockRows, start += groups) {
      const __m512i from = _mm512_set1_epi32(*start);
      const auto products = [&](const int32_t* p) {
        return _mm512_cvtepi32_ps(_mm512_add_epi32(from, _mm512_load_si512(p)));
      };
      Vec left = low.add_products(load(sum), products(dot));
      Vec right = high.add_products(load(sum + 16), products(dot + 16));
      if constexpr (kSecond) {
        left = low.add_offset(left, *x_sum);
        right = high.add_offset(right, *x_sum);
        x_sum += groups;
      }
      store(sum, left);
      store(sum + 16, right);
    }
  }
};

// dots[16][32] of a tile of x and the steps in the registers.
template <int kSteps>
inline void tile_dots(int32_t* dots, const int8_t* x, int64_t stride) {
  _tile_zero(0);
  _tile_zero(1);
  QUIRE_TILE_STREAM(2, x, stride);
  _tile_dpbsud(0, 2, 4);
  _tile_dpbsud(1, 2, 5);
  if constexpr (kSteps == 2) {
    QUIRE_TILE_STREAM(3, x + kStepBytes, stride);
    _tile_dpbsud(0, 3, 6);
    _tile_dpbsud(1, 3, 7);
  }
  _tile_stored(0, dots, kBlockRows * 4);
  _tile_stored(1, dots + 16, kBlockRows * 4);
}

template <class C, int kSteps>
void block(const GemmArgs& a, const GroupedX& x, int64_t first, int64_t rows, const uint8_t* weight,
           float* sums) {
  const C codes(a);
  const int64_t ahead = tuned(a.tuning.ahead_bytes, kAhead);
  alignas(64) uint8_t steps[2 * 2 * kTileBytes];
  Products turns[kTurns];
  for (int64_t j = 0; j < rows * kBlockRows; ++j) sums[j] = 0.0f;
  int turn = 0;
  for (int64_t g = 0; g < x.groups; ++g, weight += group_bytes<C>(a)) {
    unpack(codes, steps, weight + head_bytes(a), a.group, ahead);
    QUIRE_TILE_LOAD(4, steps, 64);
    QUIRE_TILE_LOAD(5, steps + kTileBytes, 64);
    if constexpr (kSteps == 2) {
      QUIRE_TILE_LOAD(6, steps + 2 * kTileBytes, 64);
      QUIRE_TILE_LOAD(7, steps + 3 * kTileBytes, 64);
    }
    for (int64_t r = 0; r < rows; r += kGroupedTileRows) {
      Products& p = turns[turn];
      tile_dots<kSteps>(p.dots, x.q + (first + r) * x.stride + g * a.group, x.stride);
      p.g = g;
      p.first = first + r;
      p.rows = smaller(kGroupedTileRows, rows - r);
      p.head = weight;
      p.sums = sums + r * kBlockRows;
      turn = (turn + 1) % kTurns;
      turns[turn].add(a, x);
    }
  }
  for (int i = 1; i < kTurns; ++i) turns[(turn + i) % kTurns].add(a, x);
}

// With several chunks of rows, each stays in the L2 cache while many blocks of W pass by.
GemmArgs in_wide_tasks(GemmArgs a) {
  if (a.tuning.group_bytes == 0 && a.rows > kGroupedChunk) a.tuning.group_bytes = kWideBytes;
  return a;
}

template <class C, const Gemm& kVector>
void grouped_task(const GemmArgs& args, int64_t index) {
  if (args.rows <= tuned(args.tuning.vector_rows, kFewRows)) return kVector.task(with_hints(args), index);
  const GroupedTask<C> task(in_wide_tasks(args), index);
  alignas(64) bf16 halves[kGroupedChunk * kBlockRows / 2];
  const GemmArgs a = past_caches(in_wide_tasks(args), {halves, task.first, task.from, task.to});
  const GroupedX x(a);
  const int64_t rows = task.last - task.first;
  const uint8_t* weight = task.weight;
  alignas(64) float sums[kGroupedChunk * kBlockRows];
  configure(a.group);
  for (int64_t n0 = task.from; n0 < task.to; n0 += kBlockRows, weight += block_bytes<C>(a)) {
    (a.group > kStepBytes ? block<C, 2> : block<C, 1>)(a, x, task.first, rows, weight, sums);
    grouped_finish(a, x, task.first, rows, n0, sums);
  }
  if (a.past_caches) _mm_sfence();
  _tile_release();
}

template <const Gemm& kVector>
int64_t scratch_bytes(const GemmArgs& a) {
  return kVector.scratch_bytes(a);
}
template <const Gemm& kVector>
int64_t prepare_tasks(const GemmArgs& a) {
  return kVector.prepare_tasks(a);
}
template <const Gemm& kVector>
void prepare(const GemmArgs& a, int64_t index) {
  kVector.prepare(a, index);
}
template <const Gemm& kVector>
int64_t tasks(const GemmArgs& a) {
  return kVector.tasks(in_wide_tasks(a));
}

template <class C, const Gemm& kVector>
constexpr Gemm kTiles = {scratch_bytes<kVector>, prepare_tasks<kVector>, prepare<kVector>,
                         tasks<kVector>, grouped_task<C, kVector>};

}  // namespace

const Gemm kGemmTilesU2 = kTiles<Codes<2>, kGemmU2>;
const Gemm kGemmTilesU3 = kTiles<Codes<3>, kGemmU3>;
const Gemm kGemmTilesU4 = kTiles<Codes<4>, kGemmU4>;
const Gemm kGemmTilesU4Book = kTiles<BookCodes, kGemmU4Book>;
const Gemm kGemmTilesU5 = kTiles<Codes<5>, kGemmU5>;
const Gemm kGemmTilesU6 = kTiles<Codes<6>, kGemmU6>;
const Gemm kGemmTilesU8 = kTiles<Codes<8>, kGemmU8>;

}  // namespace quire::QUIRE_ISA
