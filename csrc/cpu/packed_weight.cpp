#include "packed_weight.h"

#include <string.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "pack_f8.h"
#include "scalar.h"

namespace quire {

namespace {

constexpr int64_t kHalfBlock = kBlockRows / 2;

int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

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

// Of one expert.
int64_t blocks_of(const PackedShape& shape) {
  const int64_t n = shape.n / shape.experts;
  return is_gated(shape.epilogue) ? round_up(n / 2, kHalfBlock) / kHalfBlock
                                  : round_up(n, kBlockRows) / kBlockRows;
}

int64_t checked_bytes(const PackedShape& shape) {
  if (shape.n < 1 || shape.k < 1) {
    throw std::invalid_argument("a packed weight has at least one row and column");
  }
  if (shape.kind == kWeightS8 && shape.k > 65536) {
    throw std::invalid_argument("int8 sums are exact up to 65536 columns only");
  }
  if (shape.experts < 1 || shape.n % shape.experts != 0) {
    throw std::invalid_argument(std::to_string(shape.n) + " rows are not those of " +
                                std::to_string(shape.experts) + " experts");
  }
  if (is_gated(shape.epilogue) && shape.n / shape.experts % 2 != 0) {
    throw std::invalid_argument("gate and up have as many rows each, so their number is even");
  }
  const int64_t g = shape.group;
  if (code_bits(shape.kind) != 0 && g != 16 && g != 32 && g != 64 && g != 128) {
    throw std::invalid_argument("a group of weights has 16, 32, 64 or 128");
  }
  if (is_f8(shape.kind) && g != 0 && g != 32 && g != 64 && g != 128) {
    throw std::invalid_argument("a group of 8-bit floats has 32, 64 or 128; 0 is a whole row");
  }
  return shape.experts * blocks_of(shape) * bytes_of_block(shape);
}

}  // namespace

PackedWeight::PackedWeight(const PackedShape& shape)
    : shape_(shape), memory_(checked_bytes(shape)) {
  const size_t padded = static_cast<size_t>(all_blocks() * kBlockRows);
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

int64_t PackedWeight::blocks() const { return blocks_of(shape_); }

int64_t PackedWeight::source_row(int64_t packed) const {
  const int64_t n = shape_.n / shape_.experts, own_rows = blocks() * kBlockRows;
  const int64_t first = packed / own_rows * n, own = packed % own_rows;
  if (!is_gated(shape_.epilogue)) return own < n ? first + own : -1;
  const int64_t row = own / kBlockRows * kHalfBlock + own % kHalfBlock;
  if (row >= n / 2) return -1;
  return first + (own % kBlockRows < kHalfBlock ? row : n / 2 + row);
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

GemmTuning PackedWeight::tuning(int64_t rows) const {
  for (const Tuned& tuned : tuned_) {
    if (rows <= tuned.rows) return tuned.tuning;
  }
  return {};
}

GemmArgs PackedWeight::args(int64_t expert, int64_t from, int64_t to) const {
  const int64_t first = expert * blocks() + from, row = first * kBlockRows;
  const int64_t block_columns = is_gated(shape_.epilogue) ? kHalfBlock : kBlockRows;
  const auto rows_from = [row](const auto& values, int64_t each = 1) {
    return values.empty() ? nullptr : values.data() + row * each;
  };
  GemmArgs a{};
  a.n = (to - from) * kBlockRows;
  a.columns = std::min(to * block_columns, columns()) - from * block_columns;
  a.k = shape_.k;
  a.weight = memory_.data() + first * block_bytes();
  a.scale = rows_from(scale_, is_f8(shape_.kind) ? f8_groups(shape_.k, shape_.group) : 1);
  a.row_sum = rows_from(row_sum_);
  a.bias = rows_from(bias_);
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
  for (int64_t p = 0; p < all_blocks() * kBlockRows; ++p) {
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
