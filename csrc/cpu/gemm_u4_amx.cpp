// GEMM of 4-bit weights on AMX tiles. Few rows take VNNI: the sums of a group are exact, so both
// give the same bits.
//
// A group of a block is unpacked to bytes once for all rows of a chunk, and stays in tile registers
// while the tiles of x pass by.
#include "u4_parts.h"

#if defined(QUIRE_TILES)

namespace quire::QUIRE_ISA {

namespace {

constexpr int64_t kFewRows = 4;
constexpr int64_t kAhead = 8192;  // bytes of W fetched ahead

struct TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// Tile registers: 0 1 the sums of 16 x 32 outputs, 2 3 rows of x, 4 5 / 6 7 a step of W each.
void configure(int64_t group) {
  const uint16_t bytes = static_cast<uint16_t>(smaller(group, kStepBytes));
  const uint8_t lines = static_cast<uint8_t>(bytes / 4);
  const TileConfig config = {1,
                             0,
                             {},
                             {64, 64, bytes, bytes, 64, 64, 64, 64},
                             {16, 16, 16, 16, lines, lines, lines, lines}};
  __asm__ volatile("" : : "r"(&config) : "memory");  // GCC 12 may drop the stores otherwise
  _tile_loadconfig(&config);
}

// The lines of a group as steps of two tiles of bytes.
void unpack(uint8_t* steps, const uint8_t* lines, int64_t group, int64_t ahead) {
  const __m512i nibble = _mm512_set1_epi8(15);
  for (int64_t i = 0; i < group / 4; ++i) {
    __builtin_prefetch(lines + i * 64 + ahead, 0, 2);
    const __m512i both = _mm512_loadu_si512(lines + i * 64);
    uint8_t* to = steps + i / 16 * (2 * kTileBytes) + i % 16 * 64;
    _mm512_store_si512(to, _mm512_and_si512(both, nibble));
    _mm512_store_si512(to + kTileBytes, _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble));
  }
}

// dots[16][32] of a tile of x and the steps in the registers.
template <int kSteps>
inline void tile_dots(int32_t* dots, const int8_t* x, int64_t stride) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_loadd(2, x, stride);
  _tile_dpbsud(0, 2, 4);
  _tile_dpbsud(1, 2, 5);
  if constexpr (kSteps == 2) {
    _tile_loadd(3, x + kStepBytes, stride);
    _tile_dpbsud(0, 3, 6);
    _tile_dpbsud(1, 3, 7);
  }
  _tile_stored(0, dots, kBlockRows * 4);
  _tile_stored(1, dots + 16, kBlockRows * 4);
}

// Adds a group's dots[rows][32] to the sums.
inline void add_group(const GemmArgs& a, float* sums, const int32_t* dots, const uint8_t* head,
                      const float* x_sum, int64_t x_sum_stride, int64_t rows) {
  const U4GroupEnd low(a, head, 0), high(a, head, 16);
  for (int64_t r = 0; r < rows; ++r, sums += kBlockRows, dots += kBlockRows) {
    const Vec left = _mm512_cvtepi32_ps(_mm512_load_si512(dots));
    const Vec right = _mm512_cvtepi32_ps(_mm512_load_si512(dots + 16));
    const float x = x_sum[r * x_sum_stride];
    store(sums, low.add_to(load(sums), left, x));
    store(sums + 16, high.add_to(load(sums + 16), right, x));
  }
}

template <int kSteps>
void block(const GemmArgs& a, const U4Input& x, int64_t first, int64_t rows, const uint8_t* weight,
           float* sums) {
  const int64_t groups = u4_groups(a), ahead = tuned(a.tuning.ahead_bytes, kAhead);
  alignas(64) uint8_t steps[2 * 2 * kTileBytes];
  alignas(64) int32_t dots[2][kU4TileRows * kBlockRows];  // in turn: one is read, one is written
  for (int64_t j = 0; j < rows * kBlockRows; ++j) sums[j] = 0.0f;
  for (int64_t g = 0; g < groups; ++g, weight += u4_group_bytes(a)) {
    unpack(steps, weight + kU4HeadBytes, a.group, ahead);
    _tile_loadd(4, steps, 64);
    _tile_loadd(5, steps + kTileBytes, 64);
    if constexpr (kSteps == 2) {
      _tile_loadd(6, steps + 2 * kTileBytes, 64);
      _tile_loadd(7, steps + 3 * kTileBytes, 64);
    }
    for (int64_t r = 0; r < rows; r += kU4TileRows) {
      int32_t* const out = dots[r / kU4TileRows % 2];
      tile_dots<kSteps>(out, x.q + (first + r) * x.stride + g * a.group, x.stride);
      add_group(a, sums + r * kBlockRows, out, weight, x.sum + (first + r) * groups + g, groups,
                smaller(kU4TileRows, rows - r));
    }
  }
}

void task(const GemmArgs& a, int64_t index) {
  if (a.rows <= tuned(a.tuning.vector_rows, kFewRows)) return kGemmU4.task(a, index);
  const U4Cut cut(a);
  const U4Input x(a);
  const int64_t first = index % cut.chunks * kU4Chunk, rows = smaller(a.rows - first, kU4Chunk);
  const int64_t from = index / cut.chunks * cut.task_blocks * kBlockRows;
  const int64_t to = smaller(a.n, from + cut.task_blocks * kBlockRows);
  const uint8_t* weight = static_cast<const uint8_t*>(a.weight) + from / kBlockRows * u4_block_bytes(a);
  alignas(64) float sums[kU4Chunk * kBlockRows];
  configure(a.group);
  for (int64_t n0 = from; n0 < to; n0 += kBlockRows, weight += u4_block_bytes(a)) {
    (a.group > kStepBytes ? block<2> : block<1>)(a, x, first, rows, weight, sums);
    u4_finish(a, x, first, rows, n0, sums);
  }
  _tile_release();
}

int64_t scratch_bytes(const GemmArgs& a) { return kGemmU4.scratch_bytes(a); }
int64_t prepare_tasks(const GemmArgs& a) { return kGemmU4.prepare_tasks(a); }
void prepare(const GemmArgs& a, int64_t index) { kGemmU4.prepare(a, index); }
int64_t tasks(const GemmArgs& a) { return kGemmU4.tasks(a); }

}  // namespace

const Gemm kGemmTilesU4 = {scratch_bytes, prepare_tasks, prepare, tasks, task};

}  // namespace quire::QUIRE_ISA

#endif
