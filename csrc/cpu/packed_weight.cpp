#include "packed_weight.h"

#include <string.h>

#include <bit>
#include <memory>
#include <new>
#include <stdexcept>

#include "pack_u4.h"
#include "scalar.h"

namespace quire {

namespace {

constexpr int64_t kHalfBlock = kBlockRows / 2;

int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

constexpr DType dtype_of(float) { return kFloat32; }
constexpr DType dtype_of(bf16) { return kBFloat16; }
constexpr DType dtype_of(f16) { return kFloat16; }

typedef uint32_t Lanes4 __attribute__((vector_size(16)));  // 4 lanes: baseline on every machine

// Transposes 4 × 4 lanes of 4 bytes: 16 bytes of row r, `at` bytes from its start, become lane r of
// 4 lines, `line_bytes` apart.
void transpose(uint8_t* to, int64_t line_bytes, const uint8_t* const* from, int64_t at) {
  Lanes4 r0, r1, r2, r3;
  memcpy(&r0, from[0] + at, 16);
  memcpy(&r1, from[1] + at, 16);
  memcpy(&r2, from[2] + at, 16);
  memcpy(&r3, from[3] + at, 16);
  const Lanes4 a = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
  const Lanes4 b = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
  const Lanes4 c = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
  const Lanes4 d = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
  const Lanes4 lines[] = {__builtin_shufflevector(a, b, 0, 1, 4, 5),
                          __builtin_shufflevector(a, b, 2, 3, 6, 7),
                          __builtin_shufflevector(c, d, 0, 1, 4, 5),
                          __builtin_shufflevector(c, d, 2, 3, 6, 7)};
  for (int64_t line = 0; line < 4; ++line) memcpy(to + line * line_bytes, lines + line, 16);
}

// Puts 32 rows to their places in the block, a step at a time: what is read and what is written
// are in the L1 cache.
void interleave(uint8_t* block, const uint8_t* const* rows, int64_t steps) {
  for (int64_t step = 0; step < steps; ++step, block += 2 * kTileBytes) {
    for (int64_t r = 0; r < kBlockRows; r += 4) {
      uint8_t* to = block + r / 16 * kTileBytes + r % 16 * 4;
      for (int64_t at = 0; at < kStepBytes; at += 16) {
        transpose(to + at / 4 * 64, 64, rows + r, step * kStepBytes + at);
      }
    }
  }
}

// The same for 4-byte values in the order [k][32 rows].
void interleave_f32(uint8_t* block, const uint8_t* const* rows, int64_t k) {
  constexpr int64_t kLine = kBlockRows * 4;
  const int64_t bytes = k * 4, whole = bytes / 16 * 16;
  for (int64_t begin = 0; begin < whole; begin += kStepBytes) {
    const int64_t end = begin + kStepBytes < whole ? begin + kStepBytes : whole;
    for (int64_t r = 0; r < kBlockRows; r += 4) {
      for (int64_t at = begin; at < end; at += 16) {
        transpose(block + at / 4 * kLine + r * 4, kLine, rows + r, at);
      }
    }
  }
  for (int64_t r = 0; r < kBlockRows; ++r) {
    for (int64_t at = whole; at < bytes; at += 4) {
      memcpy(block + at / 4 * kLine + r * 4, rows[r] + at, 4);
    }
  }
}

// The same for values of 2 bytes: `lines` of them, one of each of `width` rows in a line; the lines of
// the next rows follow after `lines` of these.
void interleave_16(uint8_t* out, const uint8_t* const* rows, int64_t at, int64_t lines,
                   int64_t width) {
  for (int64_t r = 0; r < kBlockRows; ++r) {
    uint8_t* const to = out + (r / width * lines * width + r % width) * 2;
    const uint8_t* const from = rows[r] + at;
    for (int64_t line = 0; line < lines; ++line) memcpy(to + line * width * 2, from + line * 2, 2);
  }
}

// Rounds a row to int8; returns its scale, and the sum of the int8 in `sum`.
template <class T>
float quantize(const T* row, int64_t k, int8_t* __restrict q, int32_t& sum) {
  int32_t largest = 0;  // as bits: they order like the numbers, with NaN above all
  for (int64_t i = 0; i < k; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(to_float(row[i])) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  const float top = std::bit_cast<float>(largest);
  const float inverse = top > 1e-36f ? 127.0f / top : 0.0f;
  int32_t total = 0;
  for (int64_t i = 0; i < k; ++i) {
    // Adding 1.5 * 2^23 leaves the number, rounded to nearest even, in the lowest bits.
    const int32_t bits = std::bit_cast<int32_t>(to_float(row[i]) * inverse + 0x1.8p23f);
    const int32_t rounded = static_cast<int32_t>(static_cast<uint32_t>(bits) << 24) >> 24;
    q[i] = static_cast<int8_t>(rounded);
    total += rounded;
  }
  sum = total;
  return top / 127.0f;
}

int64_t bytes_of_block(WeightKind kind, int64_t k, int64_t group) {
  switch (kind) {
    case kWeightU4: return u4_block_bytes(k, group);
    case kWeightF32: return kBlockRows * k * 4;
    case kWeightF16: return kBlockRows * k * 2;
    case kWeightBF16: return kBlockRows * round_up(k, 32) * 2;
    case kWeightS8A16: return kBlockRows * round_up(k, 32);
    default: return kBlockRows * round_up(k, 64);
  }
}

int64_t blocks_of(Epilogue epilogue, int64_t n) {
  return epilogue == kSiluMul ? round_up(n / 2, kHalfBlock) / kHalfBlock
                              : round_up(n, kBlockRows) / kBlockRows;
}

int64_t checked_bytes(WeightKind kind, Epilogue epilogue, int64_t n, int64_t k, int64_t group) {
  if (n < 1 || k < 1) throw std::invalid_argument("a packed weight has at least one row and column");
  if (kind == kWeightS8 && k > 65536) {
    throw std::invalid_argument("int8 sums are exact up to 65536 columns only");
  }
  if (epilogue == kSiluMul && n % 2 != 0) {
    throw std::invalid_argument("gate and up have as many rows each, so their number is even");
  }
  if (kind == kWeightU4 && group != 32 && group != 64 && group != 128) {
    throw std::invalid_argument("a group of 4-bit weights has 32, 64 or 128");
  }
  return blocks_of(epilogue, n) * bytes_of_block(kind, k, group);
}

int64_t rows_of(const std::vector<WeightPart>& parts) {
  int64_t rows = 0;
  for (const WeightPart& part : parts) rows += part.rows;
  return rows;
}

template <class T>
const T* row_at(const std::vector<WeightPart>& parts, int64_t row) {
  const WeightPart* part = parts.data();
  for (; row >= part->rows; ++part) row -= part->rows;
  return static_cast<const T*>(part->data) + row * part->stride;
}

}  // namespace

PackedWeight::PackedWeight(const PackedShape& shape)
    : kind_(shape.kind), epilogue_(shape.epilogue), n_(shape.n), k_(shape.k), group_(shape.group),
      zero_points_(shape.zero_points),
      memory_(checked_bytes(shape.kind, shape.epilogue, shape.n, shape.k, shape.group)) {
  const size_t padded = static_cast<size_t>(blocks() * kBlockRows);
  const bool int8 = kind_ == kWeightS8 || kind_ == kWeightS8A16;
  if (int8 || kind_ == kWeightU4) scale_.assign(padded, 0.0f);
  if (int8) row_sum_.assign(padded, 0);
  if (shape.bias) bias_.assign(padded, 0.0f);
}

void PackedWeight::set_bias(const float* bias) {
  for (size_t p = 0; p < bias_.size(); ++p) {
    const int64_t row = source_row(static_cast<int64_t>(p));
    if (row >= 0) bias_[p] = bias[row];
  }
}

PackedWeight::PackedWeight(Pool& pool, WeightKind kind, Epilogue epilogue,
                           const std::vector<WeightPart>& parts, DType dtype, int64_t k,
                           const float* bias, U4Rounding u4)
    : PackedWeight({kind, epilogue, rows_of(parts), k, u4.group, false, bias != nullptr}) {
  set_bias(bias);
  switch (dtype) {
    case kFloat32: pack<float>(pool, parts, u4); break;
    case kBFloat16: pack<bf16>(pool, parts, u4); break;
    default: pack<f16>(pool, parts, u4); break;
  }
}

PackedWeight::PackedWeight(Pool& pool, Epilogue epilogue, const U4Weight& source, const float* bias)
    : PackedWeight({kWeightU4, epilogue, source.n, source.k, source.group, source.zero_points,
                    bias != nullptr}) {
  set_bias(bias);
  each_block(pool, [&](int64_t block) {
    U4Rows rows(k_, group_, zero_points_);
    for (int64_t r = 0; r < kBlockRows; ++r) {
      const int64_t n = source_row(block * kBlockRows + r);
      if (n < 0) continue;
      const size_t heads = static_cast<size_t>(rows.groups) * sizeof(float);
      memcpy(rows.q_of(r), source.q + n * k_, static_cast<size_t>(k_));
      memcpy(rows.scale_of(r), source.scale + n * rows.groups, heads);
      memcpy(rows.second_of(r), source.second + n * rows.groups, heads);
    }
    pack_u4(rows, memory_.data() + block * block_bytes(), scale_.data() + block * kBlockRows);
  });
}

int64_t PackedWeight::blocks() const { return blocks_of(epilogue_, n_); }

int64_t PackedWeight::source_row(int64_t packed) const {
  if (epilogue_ != kSiluMul) return packed < n_ ? packed : -1;
  const int64_t half = n_ / 2, row = packed / kBlockRows * kHalfBlock + packed % kHalfBlock;
  if (row >= half) return -1;
  return packed % kBlockRows < kHalfBlock ? row : half + row;
}

int64_t PackedWeight::block_bytes() const { return bytes_of_block(kind_, k_, group_); }

std::vector<PackedWeight::Region> PackedWeight::regions() {
  const auto bytes = [](auto& values) {
    return Region{reinterpret_cast<uint8_t*>(values.data()),
                  static_cast<int64_t>(values.size() * sizeof(values[0]))};
  };
  return {{memory_.data(), memory_.bytes()}, bytes(scale_), bytes(row_sum_), bytes(bias_)};
}

int64_t PackedWeight::nbytes() const {
  return memory_.bytes() + static_cast<int64_t>(4 * (scale_.size() + row_sum_.size() + bias_.size()));
}

template <class Body>
void PackedWeight::each_block(Pool& pool, const Body& body) {
  const auto task = [](void* context, int64_t block) { (*static_cast<const Body*>(context))(block); };
  pool.run(blocks(), task, const_cast<Body*>(&body));
}

template <class T>
void PackedWeight::pack(Pool& pool, const std::vector<WeightPart>& parts, U4Rounding u4) {
  each_block(pool, [&](int64_t block) {
    if (kind_ == kWeightU4) {
      round_u4_block<T>(parts, block, u4);
    } else {
      pack_block<T>(parts, block);
    }
  });
}

template <class T>
void PackedWeight::round_u4_block(const std::vector<WeightPart>& parts, int64_t block,
                                  U4Rounding u4) {
  U4Rows rows(k_, group_, zero_points_);
  std::vector<float> w(static_cast<size_t>(k_));
  for (int64_t r = 0; r < kBlockRows; ++r) {
    const int64_t n = source_row(block * kBlockRows + r);
    if (n < 0) continue;
    const T* row = row_at<T>(parts, n);
    for (int64_t i = 0; i < k_; ++i) w[static_cast<size_t>(i)] = to_float(row[i]);
    for (int64_t g = 0; g < rows.groups; ++g) {
      const int64_t first = g * group_, count = k_ - first < group_ ? k_ - first : group_;
      u4.quantize(w.data() + first, count, rows.q_of(r) + first, rows.scale_of(r) + g,
                  rows.second_of(r) + g);
    }
  }
  pack_u4(rows, memory_.data() + block * block_bytes(), scale_.data() + block * kBlockRows);
}

template <class T>
void PackedWeight::pack_block(const std::vector<WeightPart>& parts, int64_t block) {
  const int64_t row_bytes = block_bytes() / kBlockRows;
  const bool int8 = kind_ == kWeightS8 || kind_ == kWeightS8A16;
  const DType stored = kind_ == kWeightF32   ? kFloat32
                       : kind_ == kWeightF16 ? kFloat16
                                             : kBFloat16;
  const bool as_it_is = !int8 && dtype_of(T{}) == stored &&
                        k_ * static_cast<int64_t>(sizeof(T)) == row_bytes;
  const int64_t staged = row_bytes + kStepBytes;  // not a power of two: rows share no cache set
  const auto stage = std::make_unique<uint8_t[]>(
      static_cast<size_t>(as_it_is ? row_bytes : kBlockRows * staged));
  const uint8_t* from[kBlockRows];
  for (int64_t r = 0; r < kBlockRows; ++r) {
    const int64_t packed = block * kBlockRows + r, n = source_row(packed);
    uint8_t* const to = stage.get() + (as_it_is ? 0 : r * staged);
    from[r] = to;
    if (n < 0) continue;  // zero, as the stage is
    const T* row = row_at<T>(parts, n);
    if (int8) {
      const size_t p = static_cast<size_t>(packed);
      scale_[p] = quantize(row, k_, reinterpret_cast<int8_t*>(to), row_sum_[p]);
    } else if (as_it_is) {
      from[r] = reinterpret_cast<const uint8_t*>(row);
    } else if (kind_ == kWeightF32) {
      float* const values = reinterpret_cast<float*>(to);
      for (int64_t k = 0; k < k_; ++k) values[k] = to_float(row[k]);
    } else {
      uint16_t* const bits = reinterpret_cast<uint16_t*>(to);
      for (int64_t k = 0; k < k_; ++k) {
        bits[k] = kind_ == kWeightF16 ? to_f16(row[k]) : to_bf16(row[k]);
      }
    }
  }
  uint8_t* const out = memory_.data() + block * block_bytes();
  if (kind_ == kWeightF32) {
    interleave_f32(out, from, k_);
  } else if (kind_ == kWeightF16) {
    for (int64_t k = 0; k < k_; k += 32) {
      const int64_t lines = k_ - k < 32 ? k_ - k : 32;
      interleave_16(out + k * kBlockRows * 2, from, k * 2, lines, kBlockRows);
    }
  } else if (kind_ == kWeightS8A16) {
    for (int64_t k = 0; k < row_bytes; k += 32) {
      interleave_16(out + k * kBlockRows, from, k, 16, kHalfBlock);
    }
  } else {
    interleave(out, from, row_bytes / kStepBytes);
  }
}

GemmTuning PackedWeight::tuning(int64_t rows) const {
  for (const Tuned& tuned : tuned_) {
    if (rows <= tuned.rows) return tuned.tuning;
  }
  return {};
}

GemmArgs PackedWeight::args() const {
  GemmArgs a{};
  a.n = blocks() * kBlockRows;
  a.columns = columns();
  a.k = k_;
  a.weight = memory_.data();
  a.scale = scale_.empty() ? nullptr : scale_.data();
  a.row_sum = row_sum_.data();
  a.bias = bias_.empty() ? nullptr : bias_.data();
  a.epilogue = epilogue_;
  a.group = group_;
  a.zero_points = zero_points_;
  return a;
}

void PackedWeight::read_row(int64_t packed, float* out) const {
  const uint8_t* block = memory_.data() + packed / kBlockRows * block_bytes();
  const int64_t r = packed % kBlockRows;
  if (kind_ == kWeightU4) {
    const float unit = scale_[static_cast<size_t>(packed)];
    return read_u4(block, r, k_, group_, zero_points_, unit, out);
  }
  if (kind_ == kWeightF32) {
    for (int64_t k = 0; k < k_; ++k) memcpy(out + k, block + (k * kBlockRows + r) * 4, 4);
    return;
  }
  if (kind_ == kWeightF16) {
    const f16* values = reinterpret_cast<const f16*>(block) + r;
    for (int64_t k = 0; k < k_; ++k) out[k] = to_float(values[k * kBlockRows]);
    return;
  }
  const int64_t lane = kind_ == kWeightS8 ? 4 : 2;           // values of the row in a line
  const int64_t lane_bytes = kind_ == kWeightS8A16 ? 2 : 4;  // that they take
  block += (r / 16 * 256 + r % 16) * lane_bytes;
  for (int64_t k = 0; k < k_; ++k) {
    const int64_t line = k / lane;
    const uint8_t* at = block + (line / 16 * 512 + line % 16 * 16) * lane_bytes;
    if (kind_ == kWeightBF16) {
      out[k] = to_float(reinterpret_cast<const bf16*>(at)[k % lane]);
    } else {
      out[k] = static_cast<float>(reinterpret_cast<const int8_t*>(at)[k % lane]) *
               scale_[static_cast<size_t>(packed)];
    }
  }
}

void PackedWeight::unpack(float* out) const {
  for (int64_t p = 0; p < blocks() * kBlockRows; ++p) {
    if (source_row(p) >= 0) read_row(p, out + source_row(p) * k_);
  }
}

void PackedWeight::lookup(const int64_t* ids, int64_t rows, DType dtype, void* out) const {
  if (dtype == kFloat32) {
    for (int64_t r = 0; r < rows; ++r) read_row(ids[r], static_cast<float*>(out) + r * k_);
    return;
  }
  const auto values = std::make_unique<float[]>(static_cast<size_t>(k_));
  for (int64_t r = 0; r < rows; ++r) {
    read_row(ids[r], values.get());
    uint16_t* to = static_cast<uint16_t*>(out) + r * k_;
    for (int64_t k = 0; k < k_; ++k) {
      to[k] = dtype == kFloat16 ? to_f16(values[k]) : to_bf16(values[k]);
    }
  }
}

}  // namespace quire
