#include "packed_weight.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <new>
#include <stdexcept>

namespace quire {

namespace {

constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kHalfBlock = kBlockRows / 2;

int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

float to_float(float v) { return v; }
float to_float(bf16 v) { return std::bit_cast<float>(uint32_t{v.bits} << 16); }
float to_float(f16 v) {
  const uint32_t sign = uint32_t{v.bits} >> 15 << 31, magnitude = v.bits & 0x7fffu;
  // The exponent moves by multiplication, which is exact and also normalizes subnormals.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const uint32_t special = magnitude >= 0x7c00 ? 0x7f800000u : 0;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
}

uint16_t to_bf16(bf16 v) { return v.bits; }
template <class T>
uint16_t to_bf16(T value) {
  const float v = to_float(value);
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>(v != v ? 0x7fc0 : rounded);
}

// Where the values of row r (within its block) at column k are, in units of values; `lane` is how
// many of them make 4 bytes.
int64_t offset(int64_t r, int64_t k, int64_t lane) {
  const int64_t step = 16 * lane, tile = 16 * step;
  return k / step * (2 * tile) + r / 16 * tile + k % step / lane * step + r % 16 * lane + k % lane;
}

// Puts 32 rows, `stride` bytes apart, to their places in the block. A step at a time: what is read
// and what is written are in the L1 cache.
void interleave(uint8_t* block, const uint8_t* rows, int64_t stride, int64_t steps) {
  for (int64_t step = 0; step < steps; ++step, block += 2 * kTileBytes, rows += kStepBytes) {
    for (int64_t r = 0; r < kBlockRows; ++r) {
      const uint8_t* from = rows + r * stride;
      uint8_t* to = block + r / 16 * kTileBytes + r % 16 * 4;
      for (int64_t line = 0; line < 16; ++line) memcpy(to + line * 64, from + line * 4, 4);
    }
  }
}

// Rounds a row to int8; returns its scale, and the sum of the int8 in `sum`.
template <class T>
float quantize(const T* row, int64_t k, int8_t* q, int32_t& sum) {
  int32_t largest = 0;  // as bits: they order like the numbers, with NaN above all
  for (int64_t i = 0; i < k; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(to_float(row[i])) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  const float top = std::bit_cast<float>(largest);
  const float inverse = top > 1e-36f ? 127.0f / top : 0.0f;
  sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    // Adding 1.5 * 2^23 leaves the number, rounded to nearest even, in the lowest bits.
    q[i] = static_cast<int8_t>(std::bit_cast<int32_t>(to_float(row[i]) * inverse + 0x1.8p23f));
    sum += q[i];
  }
  return top / 127.0f;
}

}  // namespace

PackedMemory::PackedMemory(int64_t bytes) : bytes_(bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE), align = bytes >= kHugePage ? kHugePage : page;
  const int64_t size = round_up(bytes, page), mapped = size + align - page;
  void* memory = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  uint8_t* const start = static_cast<uint8_t*>(memory);
  const int64_t skip = round_up(reinterpret_cast<int64_t>(start), align) -
                       reinterpret_cast<int64_t>(start);
  data_ = start + skip;
  if (skip > 0) munmap(start, static_cast<size_t>(skip));
  const int64_t rest = mapped - skip - size;
  if (rest > 0) munmap(data_ + size, static_cast<size_t>(rest));
#if defined(MADV_HUGEPAGE)
  // Whole huge pages only: a partly used one would cost memory.
  if (bytes >= kHugePage) {
    madvise(data_, static_cast<size_t>(bytes / kHugePage * kHugePage), MADV_HUGEPAGE);
  }
#endif
}

PackedMemory::~PackedMemory() {
  munmap(data_, static_cast<size_t>(round_up(bytes_, sysconf(_SC_PAGESIZE))));
}

namespace {

int64_t bytes_of_block(WeightKind kind, int64_t k) {
  switch (kind) {
    case kWeightF32: return kBlockRows * k * 4;
    case kWeightBF16: return kBlockRows * round_up(k, 32) * 2;
    default: return kBlockRows * round_up(k, 64);
  }
}

int64_t blocks_of(Epilogue epilogue, int64_t n) {
  return epilogue == kSiluMul ? round_up(n / 2, kHalfBlock) / kHalfBlock
                              : round_up(n, kBlockRows) / kBlockRows;
}

int64_t checked_bytes(WeightKind kind, Epilogue epilogue, int64_t n, int64_t k) {
  if (n < 1 || k < 1) throw std::invalid_argument("a packed weight has at least one row and column");
  if (kind == kWeightS8 && k > 65536) {
    throw std::invalid_argument("int8 sums are exact up to 65536 columns only");
  }
  if (epilogue == kSiluMul && n % 2 != 0) {
    throw std::invalid_argument("gate and up have as many rows each, so their number is even");
  }
  return blocks_of(epilogue, n) * bytes_of_block(kind, k);
}

}  // namespace

PackedWeight::PackedWeight(Pool& pool, WeightKind kind, Epilogue epilogue, const void* source,
                           DType dtype, int64_t n, int64_t k, int64_t stride, const float* bias)
    : kind_(kind), epilogue_(epilogue), n_(n), k_(k),
      memory_(checked_bytes(kind, epilogue, n, k)) {
  const int64_t packed = blocks() * kBlockRows;
  const size_t padded = static_cast<size_t>(packed);
  if (bias != nullptr) {
    bias_.assign(padded, 0.0f);
    for (int64_t p = 0; p < packed; ++p) {
      if (source_row(p) >= 0) bias_[static_cast<size_t>(p)] = bias[source_row(p)];
    }
  }
  if (kind == kWeightS8) {
    scale_.assign(padded, 0.0f);
    row_sum_.assign(padded, 0);
  }
  switch (dtype) {
    case kFloat32: pack(pool, static_cast<const float*>(source), stride); break;
    case kBFloat16: pack(pool, static_cast<const bf16*>(source), stride); break;
    default: pack(pool, static_cast<const f16*>(source), stride); break;
  }
}

int64_t PackedWeight::blocks() const { return blocks_of(epilogue_, n_); }

int64_t PackedWeight::source_row(int64_t packed) const {
  if (epilogue_ != kSiluMul) return packed < n_ ? packed : -1;
  const int64_t half = n_ / 2, row = packed / kBlockRows * kHalfBlock + packed % kHalfBlock;
  if (row >= half) return -1;
  return packed % kBlockRows < kHalfBlock ? row : half + row;
}

int64_t PackedWeight::block_bytes() const { return bytes_of_block(kind_, k_); }

int64_t PackedWeight::nbytes() const {
  return memory_.bytes() + static_cast<int64_t>(4 * (scale_.size() + row_sum_.size() + bias_.size()));
}

template <class T>
void PackedWeight::pack(Pool& pool, const T* source, int64_t stride) {
  struct Job {
    PackedWeight* weight;
    const T* source;
    int64_t stride;
  } job = {this, source, stride};
  const auto body = [](void* context, int64_t block) {
    const Job& j = *static_cast<Job*>(context);
    j.weight->pack_block(j.source, j.stride, block);
  };
  pool.run(blocks(), body, &job);
}

template <class T>
void PackedWeight::pack_block(const T* source, int64_t stride, int64_t block) {
  uint8_t* const out = memory_.data() + block * block_bytes();
  const int64_t first = block * kBlockRows;
  if (kind_ == kWeightF32) {
    float* to = reinterpret_cast<float*>(out);
    for (int64_t r = 0; r < kBlockRows; ++r) {
      const int64_t n = source_row(first + r);
      if (n < 0) continue;
      for (int64_t k = 0; k < k_; ++k) to[k * kBlockRows + r] = to_float(source[n * stride + k]);
    }
    return;
  }
  const int64_t row_bytes = block_bytes() / kBlockRows;
  const int64_t staged = row_bytes + kStepBytes;  // not a power of two: rows share no cache set
  std::vector<uint16_t> stage(static_cast<size_t>(kBlockRows * staged / 2));
  uint8_t* const at = reinterpret_cast<uint8_t*>(stage.data());
  for (int64_t r = 0; r < kBlockRows; ++r) {
    const int64_t n = source_row(first + r);
    if (n < 0) continue;  // zero, as the stage is
    const T* row = source + n * stride;
    if (kind_ == kWeightBF16) {
      uint16_t* to = stage.data() + r * staged / 2;
      for (int64_t k = 0; k < k_; ++k) to[k] = to_bf16(row[k]);
    } else {
      const size_t p = static_cast<size_t>(first + r);
      scale_[p] = quantize(row, k_, reinterpret_cast<int8_t*>(at + r * staged), row_sum_[p]);
    }
  }
  interleave(out, at, staged, row_bytes / kStepBytes);
}

GemmArgs PackedWeight::args() const {
  GemmArgs a{};
  a.n = blocks() * kBlockRows;
  a.columns = columns();
  a.k = k_;
  a.weight = memory_.data();
  a.scale = scale_.data();
  a.row_sum = row_sum_.data();
  a.bias = bias_.empty() ? nullptr : bias_.data();
  a.epilogue = epilogue_;
  return a;
}

void PackedWeight::unpack(float* out) const {
  for (int64_t p = 0; p < blocks() * kBlockRows; ++p) {
    const int64_t n = source_row(p), r = p % kBlockRows;
    if (n < 0) continue;
    const uint8_t* block = memory_.data() + p / kBlockRows * block_bytes();
    for (int64_t k = 0; k < k_; ++k) {
      float& to = out[n * k_ + k];
      if (kind_ == kWeightF32) {
        to = reinterpret_cast<const float*>(block)[k * kBlockRows + r];
      } else if (kind_ == kWeightBF16) {
        to = to_float(reinterpret_cast<const bf16*>(block)[offset(r, k, 2)]);
      } else {
        to = static_cast<float>(reinterpret_cast<const int8_t*>(block)[offset(r, k, 4)]) *
             scale_[static_cast<size_t>(p)];
      }
    }
  }
}

}  // namespace quire
