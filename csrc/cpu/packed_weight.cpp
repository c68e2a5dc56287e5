#include "packed_weight.h"

#include <string.h>

#include <bit>
#include <memory>
#include <new>
#include <stdexcept>

#include "interleave.h"
#include "pack_f8.h"
#include "scalar.h"

namespace quire {

namespace {

constexpr int64_t kHalfBlock = kBlockRows / 2;

int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

constexpr DType dtype_of(float) { return kFloat32; }
constexpr DType dtype_of(bf16) { return kBFloat16; }
constexpr DType dtype_of(f16) { return kFloat16; }

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

Grouping grouping_of(const PackedShape& shape, const uint8_t* codebook) {
  return {shape.kind, shape.k, shape.group, shape.second, shape.zero, codebook};
}

int64_t bytes_of_block(const PackedShape& shape) {
  switch (shape.kind) {
    case kWeightF32: return kBlockRows * shape.k * 4;
    case kWeightF16: return kBlockRows * shape.k * 2;
    case kWeightBF16: return kBlockRows * round_up(shape.k, 32) * 2;
    case kWeightS8A16: return kBlockRows * round_up(shape.k, 32);
    case kWeightS8: return kBlockRows * round_up(shape.k, 64);
    case kWeightF8E4M3:
    case kWeightF8E5M2: return f8_block_bytes(shape.k);
    default: return grouping_of(shape, nullptr).block_bytes();
  }
}

bool is_int8(WeightKind kind) { return kind == kWeightS8 || kind == kWeightS8A16; }

int64_t blocks_of(Epilogue epilogue, int64_t n) {
  return is_gated(epilogue) ? round_up(n / 2, kHalfBlock) / kHalfBlock
                            : round_up(n, kBlockRows) / kBlockRows;
}

int64_t checked_bytes(const PackedShape& shape) {
  if (shape.n < 1 || shape.k < 1) {
    throw std::invalid_argument("a packed weight has at least one row and column");
  }
  if (shape.kind == kWeightS8 && shape.k > 65536) {
    throw std::invalid_argument("int8 sums are exact up to 65536 columns only");
  }
  if (is_gated(shape.epilogue) && shape.n % 2 != 0) {
    throw std::invalid_argument("gate and up have as many rows each, so their number is even");
  }
  const int64_t g = shape.group;
  if (code_bits(shape.kind) != 0 && g != 16 && g != 32 && g != 64 && g != 128) {
    throw std::invalid_argument("a group of weights has 16, 32, 64 or 128");
  }
  if (is_f8(shape.kind) && g != 0 && g != 32 && g != 64 && g != 128) {
    throw std::invalid_argument("a group of 8-bit floats has 32, 64 or 128; 0 is a whole row");
  }
  return blocks_of(shape.epilogue, shape.n) * bytes_of_block(shape);
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
    : shape_(shape), memory_(checked_bytes(shape)) {
  const size_t padded = static_cast<size_t>(blocks() * kBlockRows);
  const bool grouped = code_bits(shape_.kind) != 0, int8 = is_int8(shape_.kind);
  if (int8 || grouped) scale_.assign(padded, 0.0f);
  if (is_f8(shape_.kind)) {
    scale_.assign(padded * static_cast<size_t>(f8_groups(shape_.k, shape_.group)), 0.0f);
  }
  if (int8) row_sum_.assign(padded, 0);
  if (shape.bias) bias_.assign(padded, 0.0f);
  if (shape_.kind == kWeightU4Book) codebook_.assign(16, 0);
  if (shape_.permuted) permutation_.assign(static_cast<size_t>(shape_.k), 0);
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
    : PackedWeight({.kind = kind, .epilogue = epilogue, .n = rows_of(parts), .k = k,
                    .group = u4.group, .second = kind == kWeightU4 ? kOffsets : kNoSecond,
                    .bias = bias != nullptr}) {
  if (code_bits(kind) != 0 && kind != kWeightU4) {
    throw std::invalid_argument("weights are not rounded to this kind while they are packed");
  }
  set_bias(bias);
  switch (dtype) {
    case kFloat32: pack<float>(pool, parts, u4); break;
    case kBFloat16: pack<bf16>(pool, parts, u4); break;
    default: pack<f16>(pool, parts, u4); break;
  }
}

PackedWeight::PackedWeight(Pool& pool, const PackedShape& shape, const QuantizedSource& source,
                           const float* bias)
    : PackedWeight(shape) {
  set_bias(bias);
  if (source.codebook != nullptr) memcpy(codebook_.data(), source.codebook, codebook_.size());
  if (source.permutation != nullptr) {
    memcpy(permutation_.data(), source.permutation, permutation_.size() * sizeof(int32_t));
  }
  each_block(pool, [&](int64_t block) {
    if (is_int8(shape_.kind)) {
      keep_s8_block(source, block);
    } else if (is_f8(shape_.kind)) {
      keep_f8_block(source, block);
    } else {
      keep_grouped_block(source, block);
    }
  });
}

void PackedWeight::keep_s8_block(const QuantizedSource& source, int64_t block) {
  const int64_t row_bytes = block_bytes() / kBlockRows;
  const auto stage = std::make_unique<uint8_t[]>(static_cast<size_t>(kBlockRows * row_bytes));
  const uint8_t* from[kBlockRows];
  for (int64_t r = 0; r < kBlockRows; ++r) {
    const int64_t packed = block * kBlockRows + r, n = source_row(packed);
    uint8_t* const to = stage.get() + r * row_bytes;
    from[r] = to;
    if (n < 0) continue;
    const int8_t* q = static_cast<const int8_t*>(source.codes) + n * shape_.k;
    memcpy(to, q, static_cast<size_t>(shape_.k));
    scale_[static_cast<size_t>(packed)] = source.scale[n];
    int32_t sum = 0;
    for (int64_t i = 0; i < shape_.k; ++i) sum += q[i];
    row_sum_[static_cast<size_t>(packed)] = sum;
  }
  interleave_s8(memory_.data() + block * block_bytes(), from, row_bytes);
}

void PackedWeight::keep_f8_block(const QuantizedSource& source, int64_t block) {
  const int64_t groups = f8_groups(shape_.k, shape_.group);
  for (int64_t r = 0; r < kBlockRows; ++r) {
    const int64_t n = source_row(block * kBlockRows + r);
    if (n < 0) continue;
    pack_f8(static_cast<const uint8_t*>(source.codes) + n * shape_.k, shape_.k, r,
            memory_.data() + block * block_bytes());
    float* const scale = scale_.data() + block * groups * kBlockRows + r;
    for (int64_t g = 0; g < groups; ++g) scale[g * kBlockRows] = source.scale[n * groups + g];
  }
}

void PackedWeight::keep_grouped_block(const QuantizedSource& source, int64_t block) {
  GroupedRows rows(grouping());
  for (int64_t r = 0; r < kBlockRows; ++r) {
    const int64_t n = source_row(block * kBlockRows + r);
    if (n < 0) continue;
    const size_t heads = static_cast<size_t>(rows.groups) * sizeof(float);
    const uint8_t* q = static_cast<const uint8_t*>(source.codes) + n * shape_.k;
    memcpy(rows.q_of(r), q, static_cast<size_t>(shape_.k));
    memcpy(rows.scale_of(r), source.scale + n * rows.groups, heads);
    if (source.second != nullptr) {
      memcpy(rows.second_of(r), source.second + n * rows.groups, heads);
    }
  }
  pack_grouped(grouping(), rows, memory_.data() + block * block_bytes(),
               scale_.data() + block * kBlockRows);
}

// Of int8 rows, as the kind wants them.
void PackedWeight::interleave_s8(uint8_t* block, const uint8_t* const* rows, int64_t row_bytes) {
  if (shape_.kind == kWeightS8) return interleave(block, rows, row_bytes / kStepBytes);
  for (int64_t k = 0; k < row_bytes; k += 32) {
    interleave_16(block + k * kBlockRows, rows, k, 16, kHalfBlock);
  }
}

int64_t PackedWeight::blocks() const { return blocks_of(shape_.epilogue, shape_.n); }

int64_t PackedWeight::source_row(int64_t packed) const {
  if (!is_gated(shape_.epilogue)) return packed < shape_.n ? packed : -1;
  const int64_t half = shape_.n / 2, row = packed / kBlockRows * kHalfBlock + packed % kHalfBlock;
  if (row >= half) return -1;
  return packed % kBlockRows < kHalfBlock ? row : half + row;
}

int64_t PackedWeight::block_bytes() const { return bytes_of_block(shape_); }

Grouping PackedWeight::grouping() const {
  return grouping_of(shape_, codebook_.empty() ? nullptr : codebook_.data());
}

std::vector<PackedWeight::Region> PackedWeight::regions() {
  const auto bytes = [](auto& values) {
    return Region{reinterpret_cast<uint8_t*>(values.data()),
                  static_cast<int64_t>(values.size() * sizeof(values[0]))};
  };
  return {{memory_.data(), memory_.bytes()}, bytes(scale_), bytes(row_sum_), bytes(bias_),
          bytes(codebook_), bytes(permutation_)};
}

int64_t PackedWeight::nbytes() const {
  const size_t numbers = scale_.size() + row_sum_.size() + bias_.size() + permutation_.size();
  return memory_.bytes() + static_cast<int64_t>(4 * numbers + codebook_.size());
}

template <class Body>
void PackedWeight::each_block(Pool& pool, const Body& body) {
  const auto task = [](void* context, int64_t block) { (*static_cast<const Body*>(context))(block); };
  pool.run(blocks(), task, const_cast<Body*>(&body));
}

template <class T>
void PackedWeight::pack(Pool& pool, const std::vector<WeightPart>& parts, U4Rounding u4) {
  each_block(pool, [&](int64_t block) {
    if (shape_.kind == kWeightU4) {
      round_u4_block<T>(parts, block, u4);
    } else {
      pack_block<T>(parts, block);
    }
  });
}

template <class T>
void PackedWeight::round_u4_block(const std::vector<WeightPart>& parts, int64_t block,
                                  U4Rounding u4) {
  GroupedRows rows(grouping());
  std::vector<float> w(static_cast<size_t>(shape_.k));
  for (int64_t r = 0; r < kBlockRows; ++r) {
    const int64_t n = source_row(block * kBlockRows + r);
    if (n < 0) continue;
    const T* row = row_at<T>(parts, n);
    for (int64_t i = 0; i < shape_.k; ++i) w[static_cast<size_t>(i)] = to_float(row[i]);
    for (int64_t g = 0; g < rows.groups; ++g) {
      const int64_t first = g * shape_.group;
      const int64_t count = shape_.k - first < shape_.group ? shape_.k - first : shape_.group;
      u4.quantize(w.data() + first, count, rows.q_of(r) + first, rows.scale_of(r) + g,
                  rows.second_of(r) + g);
    }
  }
  pack_grouped(grouping(), rows, memory_.data() + block * block_bytes(),
               scale_.data() + block * kBlockRows);
}

template <class T>
void PackedWeight::pack_block(const std::vector<WeightPart>& parts, int64_t block) {
  const int64_t row_bytes = block_bytes() / kBlockRows;
  const bool int8 = is_int8(shape_.kind);
  const DType stored = shape_.kind == kWeightF32   ? kFloat32
                       : shape_.kind == kWeightF16 ? kFloat16
                                                   : kBFloat16;
  const bool as_it_is = !int8 && dtype_of(T{}) == stored &&
                        shape_.k * static_cast<int64_t>(sizeof(T)) == row_bytes;
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
      scale_[p] = quantize(row, shape_.k, reinterpret_cast<int8_t*>(to), row_sum_[p]);
    } else if (as_it_is) {
      from[r] = reinterpret_cast<const uint8_t*>(row);
    } else if (shape_.kind == kWeightF32) {
      float* const values = reinterpret_cast<float*>(to);
      for (int64_t k = 0; k < shape_.k; ++k) values[k] = to_float(row[k]);
    } else {
      uint16_t* const bits = reinterpret_cast<uint16_t*>(to);
      for (int64_t k = 0; k < shape_.k; ++k) {
        bits[k] = shape_.kind == kWeightF16 ? to_f16(row[k]) : to_bf16(row[k]);
      }
    }
  }
  uint8_t* const out = memory_.data() + block * block_bytes();
  if (shape_.kind == kWeightF32) {
    interleave_f32(out, from, shape_.k);
  } else if (shape_.kind == kWeightF16) {
    for (int64_t k = 0; k < shape_.k; k += 32) {
      const int64_t lines = shape_.k - k < 32 ? shape_.k - k : 32;
      interleave_16(out + k * kBlockRows * 2, from, k * 2, lines, kBlockRows);
    }
  } else if (int8) {
    interleave_s8(out, from, row_bytes);
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
  a.k = shape_.k;
  a.weight = memory_.data();
  a.scale = scale_.empty() ? nullptr : scale_.data();
  a.row_sum = row_sum_.data();
  a.bias = bias_.empty() ? nullptr : bias_.data();
  a.epilogue = shape_.epilogue;
  a.group = shape_.group;
  a.second = shape_.second;
  a.zero = shape_.zero;
  a.codebook = codebook_.data();
  a.permutation = permutation_.empty() ? nullptr : permutation_.data();
  a.input_scale = shape_.input_scale;
  return a;
}

void PackedWeight::read_grouped_row(int64_t packed, const uint8_t* block, float* out) const {
  const float unit = scale_[static_cast<size_t>(packed)];
  if (permutation_.empty()) return read_grouped(grouping(), block, packed % kBlockRows, unit, out);
  const auto ordered = std::make_unique<float[]>(static_cast<size_t>(shape_.k));
  read_grouped(grouping(), block, packed % kBlockRows, unit, ordered.get());
  for (size_t i = 0; i < permutation_.size(); ++i) out[permutation_[i]] = ordered[i];
}

void PackedWeight::read_row(int64_t packed, float* out) const {
  const uint8_t* block = memory_.data() + packed / kBlockRows * block_bytes();
  const int64_t r = packed % kBlockRows;
  if (code_bits(shape_.kind) != 0) return read_grouped_row(packed, block, out);
  if (is_f8(shape_.kind)) {
    const int64_t groups = f8_groups(shape_.k, shape_.group);
    const float* scale = scale_.data() + packed / kBlockRows * groups * kBlockRows + r;
    return read_f8(shape_.kind, block, r, shape_.k, shape_.group, scale, out);
  }
  if (shape_.kind == kWeightF32) {
    for (int64_t k = 0; k < shape_.k; ++k) memcpy(out + k, block + (k * kBlockRows + r) * 4, 4);
    return;
  }
  if (shape_.kind == kWeightF16) {
    const f16* values = reinterpret_cast<const f16*>(block) + r;
    for (int64_t k = 0; k < shape_.k; ++k) out[k] = to_float(values[k * kBlockRows]);
    return;
  }
  const int64_t lane = shape_.kind == kWeightS8 ? 4 : 2;           // values of the row in a line
  const int64_t lane_bytes = shape_.kind == kWeightS8A16 ? 2 : 4;  // that they take
  block += (r / 16 * 256 + r % 16) * lane_bytes;
  for (int64_t k = 0; k < shape_.k; ++k) {
    const int64_t line = k / lane;
    const uint8_t* at = block + (line / 16 * 512 + line % 16 * 16) * lane_bytes;
    if (shape_.kind == kWeightBF16) {
      out[k] = to_float(reinterpret_cast<const bf16*>(at)[k % lane]);
    } else {
      out[k] = static_cast<float>(reinterpret_cast<const int8_t*>(at)[k % lane]) *
               scale_[static_cast<size_t>(packed)];
    }
  }
}

void PackedWeight::unpack(float* out) const {
  for (int64_t p = 0; p < blocks() * kBlockRows; ++p) {
    if (source_row(p) >= 0) read_row(p, out + source_row(p) * shape_.k);
  }
}

void PackedWeight::lookup(const int64_t* ids, int64_t rows, DType dtype, void* out) const {
  if (dtype == kFloat32) {
    for (int64_t r = 0; r < rows; ++r) read_row(ids[r], static_cast<float*>(out) + r * shape_.k);
    return;
  }
  const auto values = std::make_unique<float[]>(static_cast<size_t>(shape_.k));
  for (int64_t r = 0; r < rows; ++r) {
    read_row(ids[r], values.get());
    uint16_t* to = static_cast<uint16_t*>(out) + r * shape_.k;
    for (int64_t k = 0; k < shape_.k; ++k) {
      to[k] = dtype == kFloat16 ? to_f16(values[k]) : to_bf16(values[k]);
    }
  }
}

}  // namespace quire
