// GEMM on AMX tiles: bf16 weights, int8 weights with int8 or bf16 x (s8_a16), and 8-bit floats with
// bf16 x. The steps over k do not depend on the number of rows.
//
// x is in tiles too. A tile of 16 rows (fewer at the end) is a sequence of steps of 64 bytes per row, so
// a tile register is loaded from consecutive lines. Few rows of bf16 are loaded in place.
#include "gemm_amx_kinds.h"

namespace quire::QUIRE_ISA {

namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kInPlaceRows = 32;          // max rows of bf16 that are loaded in place
constexpr int64_t kChunkBytes = 1 << 20;      // bytes of x per task: half of a common L2 cache
constexpr int64_t kAhead = 8192;              // prefetch distance in W if it is read once

// Tile registers: 0 1 / 2 3 the sums of 32 x 32 outputs, 4 / 5 rows of x, 6 7 rows of W. This sets their
// shape for `upper` and `lower` rows of x.
void configure(int64_t upper, int64_t lower) {
  const uint8_t u = static_cast<uint8_t>(upper);
  const uint8_t l = static_cast<uint8_t>(lower > 0 ? lower : 1);
  configure(TileConfig{.row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                       .rows = {u, u, l, l, u, l, 16, 16}});
}

// Rows of x as tiles.
struct Rows {
  const uint8_t* at;
  int64_t row_stride, step_stride;  // bytes
};

// What to prefetch while computing: `lines` of 64 bytes per step.
struct Fetch {
  const uint8_t* at;
  int64_t lines;

  void step() {
    for (int64_t i = 0; i < lines; ++i) __builtin_prefetch(at + i * 64, 0, 2);
    at += lines * 64;
  }
};

// sums[upper + lower][32] of two tiles of x against a block of W.
template <class T>
void two_tiles(typename T::Sum* sums, Rows upper, Rows lower, const uint8_t* weight, int64_t steps,
               Fetch fetch) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  T kind;
  for (int64_t s = 0; s < steps; ++s, weight += T::kWeightStep) {
    fetch.step();
    const uint8_t* w = kind.tiles(weight);
    QUIRE_TILE_LOAD(4, upper.at + s * upper.step_stride, upper.row_stride);
    QUIRE_TILE_LOAD(6, w, 64);
    QUIRE_DOT(T, 0, 4, 6)
    QUIRE_TILE_LOAD(7, w + kTileBytes, 64);
    QUIRE_DOT(T, 1, 4, 7)
    QUIRE_TILE_LOAD(5, lower.at + s * lower.step_stride, lower.row_stride);
    QUIRE_DOT(T, 2, 5, 6)
    QUIRE_DOT(T, 3, 5, 7)
  }
  _tile_stored(0, sums, kBlockRows * 4);
  _tile_stored(1, sums + 16, kBlockRows * 4);
  _tile_stored(2, sums + kTileRows * kBlockRows, kBlockRows * 4);
  _tile_stored(3, sums + kTileRows * kBlockRows + 16, kBlockRows * 4);
}

template <class T>
void one_tile(typename T::Sum* sums, Rows upper, const uint8_t* weight, int64_t steps, Fetch fetch) {
  _tile_zero(0);
  _tile_zero(1);
  T kind;
  for (int64_t s = 0; s < steps; ++s, weight += T::kWeightStep) {
    fetch.step();
    const uint8_t* w = kind.tiles(weight);
    QUIRE_TILE_LOAD(4, upper.at + s * upper.step_stride, upper.row_stride);
    QUIRE_TILE_LOAD(6, w, 64);
    QUIRE_DOT(T, 0, 4, 6)
    QUIRE_TILE_LOAD(7, w + kTileBytes, 64);
    QUIRE_DOT(T, 1, 4, 7)
  }
  _tile_stored(0, sums, kBlockRows * 4);
  _tile_stored(1, sums + 16, kBlockRows * 4);
}

// sums[rows][32] of one or two tiles of x with weights in groups: a group's sum is multiplied by its 32
// scales, `scale`.
template <class T>
void in_groups(const GemmArgs& a, float* sums, int64_t rows, Rows upper, Rows lower,
               const uint8_t* weight, int64_t steps, const float* scale, Fetch fetch) {
  alignas(64) float part[32 * kBlockRows];
  const int64_t group = a.group / 32;
  for (int64_t i = 0; i < rows * kBlockRows; i += kLanes) store(sums + i, zero());
  for (int64_t s = 0; s < steps; s += group, scale += kBlockRows) {
    const int64_t some = smaller(group, steps - s);
    const Rows x{upper.at + s * upper.step_stride, upper.row_stride, upper.step_stride};
    const Rows y{lower.at + s * lower.step_stride, lower.row_stride, lower.step_stride};
    const uint8_t* const w = weight + s * T::kWeightStep;
    const Fetch ahead{fetch.at + s * fetch.lines * 64, fetch.lines};
    if (rows > kTileRows) {
      two_tiles<T>(part, x, y, w, some, ahead);
    } else {
      one_tile<T>(part, x, w, some, ahead);
    }
    for (int64_t i = 0; i < rows * kBlockRows; i += kLanes) {
      store(sums + i, fma(load(scale + i % kBlockRows), load(part + i), load(sums + i)));
    }
  }
}

template <class T>
int64_t steps_of(const GemmArgs& a) {
  return ceil_div(a.k * T::kBytes, kStepBytes);
}

template <class T>
bool in_place(const GemmArgs& a) {
  return T::kBytes == 2 && a.x_dtype == kBFloat16 && a.rows <= kInPlaceRows && a.k % 32 == 0;
}

// The tile that begins at row r, in the scratch memory or in place.
template <class T>
Rows tile_at(const GemmArgs& a, int64_t r) {
  if (in_place<T>(a)) {
    return {static_cast<const uint8_t*>(a.x) + r * a.x_stride * 2, a.x_stride * 2, kStepBytes};
  }
  const int64_t rows = smaller(kTileRows, a.rows - r);
  const uint8_t* all = static_cast<const uint8_t*>(a.scratch);
  if (T::kBytes == 1) all = reinterpret_cast<const uint8_t*>(x_s8(a));
  return {all + r * steps_of<T>(a) * kStepBytes, kStepBytes, rows * kStepBytes};
}

// Tasks of a call: chunks of rows that stay in the cache, and groups of blocks of W.
struct Cut {
  int64_t chunk_rows, chunks, group_blocks, groups;
};

template <class T>
Cut cut(const GemmArgs& a) {
  const int64_t row_bytes = steps_of<T>(a) * kStepBytes, blocks = ceil_div(a.n, kBlockRows);
  const int64_t fitting = larger(tuned(a.tuning.chunk_bytes, kChunkBytes) / row_bytes / 32, 1) * 32;
  const int64_t chunks = ceil_div(a.rows, fitting);
  const int64_t chunk_rows = round_up(ceil_div(a.rows, larger(chunks, 1)), 32);
  const int64_t own = chunk_rows > 32 ? 8 * row_bytes * kBlockRows : 256 << 10;
  const int64_t most = tuned(a.tuning.group_bytes, own) / (row_bytes * kBlockRows);
  const int64_t fair = blocks * chunks / (a.threads * tuned(a.tuning.thread_tasks, 8));
  const int64_t group = larger(smaller(most, fair), 1);
  return {chunk_rows, chunks, group, ceil_div(blocks, group)};
}

template <class T>
void task(const GemmArgs& a, int64_t index) {
  const Cut c = cut<T>(a);
  const int64_t steps = steps_of<T>(a), block_bytes = steps * T::kWeightStep;
  const int64_t first = index / c.groups * c.chunk_rows;
  const int64_t last = smaller(a.rows, first + c.chunk_rows);
  const int64_t block = index % c.groups * c.group_blocks;
  const int64_t end = smaller(ceil_div(a.n, kBlockRows), block + c.group_blocks);
  const int64_t passes = ceil_div(last - first, 32);
  constexpr int64_t kLines = T::kWeightStep / 64;
  alignas(64) typename T::Sum sums[32 * kBlockRows];
  int64_t shape = 0;
  const uint8_t* weight = static_cast<const uint8_t*>(a.weight) + block * block_bytes;
  for (int64_t b = block; b < end; ++b, weight += block_bytes) {
    // The passes of a block prefetch the next one, a part each. Nothing prefetched the first block: its
    // first pass reads it as a stream, like a block that is read once.
    const bool streams = passes == 1 || b == block;
    const int64_t lines = ceil_div(kLines, larger(passes - (streams ? 1 : 0), 1));
    Fetch fetch = {weight + block_bytes, lines};
    for (int64_t r = first; r < last; r += 32) {
      const int64_t rows = smaller(32, last - r);
      const int64_t upper = smaller(kTileRows, rows), lower = rows - upper;
      if (shape != rows) configure(upper, lower);
      shape = rows;
      const bool stream = streams && r == first;
      const Fetch now = stream ? Fetch{weight + tuned(a.tuning.ahead_bytes, kAhead), kLines} : fetch;
      if constexpr (T::kGroups) {
        if (a.group != 0) {
          const int64_t n0 = b * kBlockRows, groups = ceil_div(a.k, a.group);
          in_groups<T>(a, sums, rows, tile_at<T>(a, r), tile_at<T>(a, r + kTileRows), weight, steps,
                       a.scale + n0 * groups, now);
          if (!stream) fetch.at += steps * lines * 64;
          finish(a, r, rows, n0, sums);
          continue;
        }
      }
      if (lower > 0) {
        two_tiles<T>(sums, tile_at<T>(a, r), tile_at<T>(a, r + kTileRows), weight, steps, now);
      } else {
        one_tile<T>(sums, tile_at<T>(a, r), weight, steps, now);
      }
      if (!stream) fetch.at += steps * lines * 64;
      finish_sums(a, r, rows, b * kBlockRows, sums);
    }
  }
  _tile_release();
}

template <class T>
int64_t tasks(const GemmArgs& a) {
  if (a.rows == 0) return 0;
  const Cut c = cut<T>(a);
  return c.chunks * c.groups;
}

template <class T>
int64_t prepare_tasks(const GemmArgs& a) {
  return in_place<T>(a) ? 0 : ceil_div(a.rows, kPrepareRows);
}

int64_t bf16_scratch_bytes(const GemmArgs& a) {
  return in_place<BF16>(a) ? 0 : a.rows * steps_of<BF16>(a) * kStepBytes;
}

void bf16_prepare(const GemmArgs& a, int64_t index) {
  const int64_t last = smaller(a.rows, (index + 1) * kPrepareRows);
  for (int64_t r = index * kPrepareRows; r < last; ++r) {
    const Rows tile = tile_at<BF16>(a, r / kTileRows * kTileRows);
    uint8_t* out = const_cast<uint8_t*>(tile.at) + r % kTileRows * kStepBytes;
    round_row(a, r, out, tile.step_stride);
  }
}

void s8_prepare(const GemmArgs& a, int64_t index) {
  const int64_t last = smaller(a.rows, (index + 1) * kPrepareRows);
  for (int64_t r = index * kPrepareRows; r < last; ++r) {
    const Rows tile = tile_at<S8>(a, r / kTileRows * kTileRows);
    int8_t* out = x_s8(a) + (tile.at - reinterpret_cast<const uint8_t*>(x_s8(a))) +
                  r % kTileRows * kStepBytes;
    x_scales(a)[r] = quantize_row(a, r, out, tile.step_stride);
  }
}

}  // namespace

const Gemm kGemmTilesBF16 = {bf16_scratch_bytes, prepare_tasks<BF16>, bf16_prepare, tasks<BF16>,
                             task<BF16>};
const Gemm kGemmTilesS8A16 = {bf16_scratch_bytes, prepare_tasks<S8A16>, bf16_prepare, tasks<S8A16>,
                              task<S8A16>};
const Gemm kGemmTilesF8E4M3 = {bf16_scratch_bytes, prepare_tasks<F8A16<f8_e4m3>>, bf16_prepare,
                               tasks<F8A16<f8_e4m3>>, task<F8A16<f8_e4m3>>};
const Gemm kGemmTilesF8E5M2 = {bf16_scratch_bytes, prepare_tasks<F8A16<f8_e5m2>>, bf16_prepare,
                               tasks<F8A16<f8_e5m2>>, task<F8A16<f8_e5m2>>};
const Gemm kGemmTilesS8 = {s8_scratch_bytes, prepare_tasks<S8>, s8_prepare, tasks<S8>, task<S8>};

}  // namespace quire::QUIRE_ISA
