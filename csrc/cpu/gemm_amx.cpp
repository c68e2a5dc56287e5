// GEMM on AMX tiles: bf16 weights, int8 weights with int8 or bf16 x (s8_a16), and 8-bit floats with
// bf16 x. The steps over k do not depend on the number of rows.
//
// W goes through the L1 cache in panels, which all rows of a task read: a block, or a part of its k. Sums
// wait in memory between panels, which changes no bit.
//
// x is in tiles too. A tile of 16 rows (fewer at the end) is a sequence of steps of 64 bytes per row, so
// a tile register is loaded from consecutive lines. Few rows of bf16 are loaded in place.
#include "gemm_amx_few.h"

namespace quire::QUIRE_ISA {

namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kPassRows = 32;
constexpr int64_t kInPlaceRows = 32;          // max rows of bf16 that are loaded in place
constexpr int64_t kChunkRows = 512;           // max rows per task: their sums of a block are 64 KiB
constexpr int64_t kChunkBytes = 1 << 20;      // bytes of x per task: half of a common L2 cache
constexpr int64_t kAhead = 1536;              // prefetch distance in W if it is read once
constexpr int64_t kEndingRows = 2;            // of a pass's epilogue, per step of the next one
constexpr int64_t kSumLines = 4;              // of sums fetched per step: 64 in 16 steps

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

  const uint8_t* step(int64_t s) const { return at + s * step_stride; }
  Rows from(int64_t s) const { return {step(s), row_stride, step_stride}; }
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

// The epilogue of a pass. The next pass runs it between its products, some rows per step: tiles and
// vectors work at the same time.
template <class T>
struct Ending {
  using Sum = typename T::Sum;
  const GemmArgs& a;
  int64_t r = 0, rows = 0, n0 = 0;
  Sum* sums = nullptr;

  void step(int64_t most = kEndingRows) {
    if (rows == 0) return;
    const int64_t some = smaller(rows, most);
    end(some);
    r += some;
    rows -= some;
    sums += some * kBlockRows;
  }
  void finish() { step(kPassRows); }
  bool holds(const Sum* pass_sums) const {
    return rows > 0 && sums >= pass_sums && sums < pass_sums + kPassRows * kBlockRows;
  }
  void follow(int64_t r_, int64_t rows_, int64_t n0_, Sum* sums_) {
    finish();
    r = r_;
    rows = rows_;
    n0 = n0_;
    sums = sums_;
  }

 private:
  void end(int64_t some) const {
    if constexpr (T::kGroups) {
      if (a.group != 0) return quire::QUIRE_ISA::finish(a, r, some, n0, sums);  // scaled already
    }
    finish_sums(a, r, some, n0, sums);
  }
};

// A pass: up to 32 rows of x meet a panel of W.
struct Pass {
  int64_t rows;
  bool streams_x;  // W is read again and again and stays in the L1 cache; x passes by. Else W does
  Rows upper, lower;
  const uint8_t* weight;
  int64_t steps;
  Fetch ahead;       // in W
  const void* next;  // the sums that the next pass continues from, to be fetched; or null
  bool onto;         // continues from the sums in memory
};

// sums[rows][32] of one or two tiles of x.
template <class T, bool kTwo, bool kStreamsX>
void multiply(typename T::Sum* sums, Pass p, Ending<T>& before) {
  const char* next = static_cast<const char*>(p.next);
  typename T::Sum* const lower = sums + kTileRows * kBlockRows;
  if (p.onto) {
    QUIRE_TILE_LOAD(0, sums, kBlockRows * 4);
    QUIRE_TILE_LOAD(1, sums + 16, kBlockRows * 4);
    if constexpr (kTwo) {
      QUIRE_TILE_LOAD(2, lower, kBlockRows * 4);
      QUIRE_TILE_LOAD(3, lower + 16, kBlockRows * 4);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kTwo) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  for (int64_t s = 0; s < p.steps; ++s, p.weight += 2 * kTileBytes) {
    p.ahead.step();
    if (kStreamsX && next != nullptr) {
      for (int64_t i = 0; i < kSumLines; ++i, next += 64) __builtin_prefetch(next, 1, 3);
    }
    QUIRE_TILE_READ(kStreamsX, 4, p.upper.step(s), p.upper.row_stride)
    QUIRE_TILE_READ(!kStreamsX, 6, p.weight, 64)
    QUIRE_DOT(T, 0, 4, 6)
    QUIRE_TILE_READ(!kStreamsX, 7, p.weight + kTileBytes, 64)
    QUIRE_DOT(T, 1, 4, 7)
    if constexpr (kTwo) {
      QUIRE_TILE_READ(kStreamsX, 5, p.lower.step(s), p.lower.row_stride)
      QUIRE_DOT(T, 2, 5, 6)
      QUIRE_DOT(T, 3, 5, 7)
    }
    before.step();
  }
  _tile_stored(0, sums, kBlockRows * 4);
  _tile_stored(1, sums + 16, kBlockRows * 4);
  if constexpr (kTwo) {
    _tile_stored(2, lower, kBlockRows * 4);
    _tile_stored(3, lower + 16, kBlockRows * 4);
  }
}

template <class T>
void multiply(typename T::Sum* sums, const Pass& p, Ending<T>& before) {
  if (p.rows <= kTileRows) {
    p.streams_x ? multiply<T, false, true>(sums, p, before) : multiply<T, false, false>(sums, p, before);
  } else {
    p.streams_x ? multiply<T, true, true>(sums, p, before) : multiply<T, true, false>(sums, p, before);
  }
}

// The same with weights in groups of so many steps: a group's sum is multiplied by its 32 scales.
template <class T>
void multiply_groups(int64_t group, const float* scale, float* sums, const Pass& p, Ending<T>& before) {
  alignas(64) float part[kPassRows * kBlockRows];
  const int64_t size = p.rows * kBlockRows;
  for (int64_t i = 0; !p.onto && i < size; i += kLanes) store(sums + i, zero());
  for (int64_t s = 0; s < p.steps; s += group, scale += kBlockRows) {
    Pass some = p;
    some.upper = p.upper.from(s);
    some.lower = p.lower.from(s);
    some.weight += s * 2 * kTileBytes;
    some.steps = smaller(group, p.steps - s);
    some.ahead.at += s * p.ahead.lines * 64;
    some.next = nullptr;
    some.onto = false;
    multiply<T>(part, some, before);
    for (int64_t i = 0; i < size; i += kLanes) {
      store(sums + i, fma(load(scale + i % kBlockRows), load(part + i), load(sums + i)));
    }
  }
}

// A pass of block n0 from step s0 on.
template <class T>
void multiply_any(const GemmArgs& a, int64_t n0, int64_t s0, typename T::Sum* sums, const Pass& p,
                  Ending<T>& before) {
  if constexpr (T::kGroups) {
    if (a.group != 0) {
      const int64_t group = s0 * kStepBytes / T::kBytes / a.group;
      const float* const scale = a.scale + n0 * ceil_div(a.k, a.group) + group * kBlockRows;
      return multiply_groups<T>(a.group * T::kBytes / kStepBytes, scale, sums, p, before);
    }
  }
  multiply<T>(sums, p, before);
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
  const int64_t most = tuned(a.tuning.chunk_bytes, kChunkBytes) / row_bytes / kPassRows * kPassRows;
  const int64_t fitting = larger(smaller(most, kChunkRows), kPassRows);
  const int64_t chunks = ceil_div(a.rows, fitting);
  const int64_t chunk_rows = round_up(ceil_div(a.rows, larger(chunks, 1)), 32);
  const int64_t own = chunk_rows > 32 ? 8 * row_bytes * kBlockRows : 256 << 10;
  const int64_t wide = tuned(a.tuning.group_bytes, own) / (row_bytes * kBlockRows);
  const int64_t fair = blocks * chunks / (a.threads * tuned(a.tuning.thread_tasks, 8));
  const int64_t group = larger(smaller(wide, fair), 1);
  return {chunk_rows, chunks, group, ceil_div(blocks, group)};
}

// The part of a call that a task computes: rows of x, and blocks of W.
template <class T>
struct Part {
  int64_t first, last, block, end, passes;
  int64_t steps, panels, panel_steps;  // of a block

  Part(const GemmArgs& a, int64_t index) {
    const Cut c = cut<T>(a);
    first = index / c.groups * c.chunk_rows;
    last = smaller(a.rows, first + c.chunk_rows);
    block = index % c.groups * c.group_blocks;
    end = smaller(ceil_div(a.n, kBlockRows), block + c.group_blocks);
    passes = ceil_div(last - first, kPassRows);
    steps = steps_of<T>(a);
    panels = ceil_div(steps, kPanelSteps);
    panel_steps = round_up(ceil_div(steps, panels), 4);  // whole groups of 128
  }
};

template <class T>
void task(const GemmArgs& args, int64_t index) {
  using Sum = typename T::Sum;
  const Part<T> part(args, index);
  alignas(64) bf16 halves[kChunkRows * kBlockRows / 2];
  const GemmArgs a = past_caches(args, {halves, part.first, part.block * kBlockRows, part.end * kBlockRows});
  constexpr int64_t kLines = T::kWeightStep / 64;
  alignas(64) Sum room[kChunkRows * kBlockRows];
  Ending<T> ending = {a};
  T kind;
  int64_t shape = 0, turn = 0;
  const uint8_t* weight =
      static_cast<const uint8_t*>(a.weight) + part.block * part.steps * T::kWeightStep;
  for (int64_t b = part.block; b < part.end; ++b) {
    for (int64_t s0 = 0; s0 < part.steps; s0 += part.panel_steps) {
      const int64_t steps = smaller(part.panel_steps, part.steps - s0);
      const bool ends = s0 + steps == part.steps;
      // Sums that wait for the next panel have their own room; else two passes take turns.
      const bool waits = part.panels > 1 && part.passes > 1;
      // The passes over a panel prefetch the next one, a part each. Nothing prefetched the first panel:
      // its first pass reads it as a stream, like a panel that is read once.
      const bool streams = part.passes == 1 || (b == part.block && s0 == 0);
      const int64_t lines = ceil_div(kLines, larger(part.passes - (streams ? 1 : 0), 1));
      Fetch fetch = {weight + steps * T::kWeightStep, lines};
      const uint8_t* const panel = kind.tiles(weight, steps);
      for (int64_t r = part.first; r < part.last; r += kPassRows) {
        const int64_t rows = smaller(kPassRows, part.last - r);
        if (shape != rows) configure(smaller(kTileRows, rows), rows - smaller(kTileRows, rows));
        shape = rows;
        const bool stream = streams && r == part.first;
        Sum* const sums = room + (waits ? r - part.first : turn * kPassRows) * kBlockRows;
        const Pass pass = {
            .rows = rows,
            .streams_x = part.passes > 1,
            .upper = tile_at<T>(a, r).from(s0),
            .lower = tile_at<T>(a, r + kTileRows).from(s0),
            .weight = panel,
            .steps = steps,
            .ahead = stream ? Fetch{weight + tuned(a.tuning.ahead_bytes, kAhead), kLines} : fetch,
            .next = waits && s0 > 0 && r + kPassRows < part.last ? sums + kPassRows * kBlockRows : nullptr,
            .onto = s0 > 0};
        // Short panels leave rows of the previous block, and groups write to the sums at once.
        if (ending.holds(sums)) ending.finish();
        if (!stream) fetch.at += steps * lines * 64;
        multiply_any<T>(a, b * kBlockRows, s0, sums, pass, ending);
        if (ends) ending.follow(r, rows, b * kBlockRows, sums);
        if (ends) turn ^= 1;
      }
      weight += steps * T::kWeightStep;
    }
  }
  ending.finish();
  if (a.past_caches) _mm_sfence();
  _tile_release();
}

// Prefetches what the epilogue of a later block reads in addition to sums: it would wait for memory.
void fetch_ends(const GemmArgs& a, int64_t n0) {
  for (int64_t i = 0; i < kBlockRows; i += 16) {
    __builtin_prefetch(a.scale + n0 + i);
    __builtin_prefetch(a.row_sum + n0 + i);
  }
}

// The same by vectors.
void few_task(const GemmArgs& a, int64_t index) {
  const Part<S8> part(a, index);
  const Rows x = tile_at<S8>(a, 0);
  const int64_t ahead = tuned(a.tuning.ahead_bytes, kAhead);
  alignas(64) int32_t sums[kFewRows * kBlockRows];
  for (int64_t b = part.block; b < part.end; ++b) {
    const uint8_t* const weight =
        static_cast<const uint8_t*>(a.weight) + b * part.steps * S8::kWeightStep;
    const int64_t n0 = b * kBlockRows;
    fetch_ends(a, n0 + 2 * kBlockRows);
    rows_dots(a.rows, x.at, x.step_stride, part.steps, weight, ahead, a.row_sum + n0, sums);
    finish_sums(a, 0, a.rows, n0, sums);
  }
}

void s8_task(const GemmArgs& a, int64_t index) {
  if (a.rows <= smaller(tuned(a.tuning.vector_rows, kFewRows), kFewRows)) return few_task(a, index);
  task<S8>(a, index);
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
const Gemm kGemmTilesS8 = {s8_scratch_bytes, prepare_tasks<S8>, s8_prepare, tasks<S8>, s8_task};

}  // namespace quire::QUIRE_ISA
