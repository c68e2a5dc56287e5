// What stands between the qkv product and attention: norms of heads, rotation, and the KV cache.
#include <nanobind/stl/array.h>

#include <array>
#include <string>

#include "../bind.h"
#include "../cpu/row_op.h"
#include "../submit.h"
#include "kv_cache.h"

namespace nb = nanobind;

namespace quire {

namespace {

struct RopeKvWrite final : RowOp<RopeKvArgs> {
  // `qkv` has a row's heads of q, then of k, then of v, if the cache has values, and may end with a
  // gate as wide as q. `cos_sin` [max positions, rotary_dim] and the norms may be null. A step may bring its own `cos_sin`.
  RopeKvWrite(const Kernels& kernels, const Matrix& q_out, const Matrix& qkv,
              const Indices& positions, const Matrix* cos_sin, const Matrix* q_norm,
              const Matrix* k_norm, const Matrix* v_norm, float eps, const KvCache& cache,
              const Indices& slots)
      : RowOp(kernels.fused.rope_kv_write[qkv.dtype], {}, 2 * qkv.row_bytes()) {
    const int64_t stored = (cache.v == nullptr ? 1 : 2) * cache.kv_heads;
    const int64_t d = cache.head_dim, heads = q_out.cols / d, gate = qkv.cols - (heads + stored) * d;
    if (q_out.cols != heads * d || q_out.rows != qkv.rows || (gate != 0 && gate != q_out.cols)) {
      throw std::invalid_argument("qkv is " + describe(qkv) + "; wanted " +
                                  std::to_string(q_out.cols + stored * d) + " columns");
    }
    expect(positions.size == qkv.rows, "positions", positions, "qkv", qkv);
    expect(slots.size == qkv.rows, "slot_mapping", slots, "qkv", qkv);
    if (cos_sin != nullptr && (cos_sin->dtype != kFloat32 || cos_sin->stride != cos_sin->cols ||
                               cos_sin->cols > d || cos_sin->cols % 2 != 0)) {
      throw std::invalid_argument("cos_sin is " + describe(*cos_sin) +
                                  "; wanted contiguous float32 of an even width up to " +
                                  std::to_string(d));
    }
    bool wide = q_norm != nullptr && expect_vector("q_norm", *q_norm, d, qkv, true);
    if (k_norm != nullptr) {
      expect(q_norm == nullptr || k_norm->dtype == q_norm->dtype, "k_norm", *k_norm, "qkv", qkv);
      wide = expect_vector("k_norm", *k_norm, d, qkv, true);
    }
    if (v_norm != nullptr) {
      expect(k_norm != nullptr && k_norm->dtype == v_norm->dtype, "v_norm", *v_norm, "qkv", qkv);
      expect_vector("v_norm", *v_norm, d, qkv, true);
    }
    uint8_t* const q = static_cast<uint8_t*>(qkv.at);
    // Pointers of what is not there stay within qkv, where a plan looks for them.
    uint8_t* const k = cache.kv_heads == 0 ? q : q + heads * d * item_bytes(qkv.dtype);
    uint8_t* const v = cache.v == nullptr ? k : k + cache.kv_heads * d * item_bytes(qkv.dtype);
    const auto at = [](const Matrix* m) { return m == nullptr ? nullptr : m->at; };
    args_ = {q_out.at, q, k, v, qkv.stride, qkv.stride, qkv.stride, positions.at,
             static_cast<const float*>(at(cos_sin)), at(q_norm), at(k_norm), at(v_norm), wide, cache.k, cache.v,
             cache.dtype, cache.k_scale, cache.v_scale, cache.k_signs,
             static_cast<float>(cache.k_unit), static_cast<float>(cache.v_unit), slots.at,
             cache.block_size, cache.k_block_stride, cache.head_stride, qkv.rows, heads,
             cache.kv_heads, d, cos_sin == nullptr ? 0 : cos_sin->cols, eps,
             cos_sin == nullptr ? 0 : cos_sin->rows, cache.blocks * cache.block_size, 0};
  }
  const char* name() const override { return "rope_kv_write"; }
  std::vector<Operand> operands() override {
    std::vector<Operand> found =
        operands_at(args_.q_out, args_.q, args_.k, args_.v, args_.positions, args_.slot_mapping);
    found.push_back({&args_.cos_sin, true});
    return found;
  }
  std::vector<IndexCheck> indices() const override {
    const IndexCheck slots{"slot", args_.slot_mapping, args_.slots};
    if (args_.cos_sin == nullptr) return {slots};
    return {{"position", args_.positions, args_.max_positions, 0, args_.cos_sin}, slots};
  }
  int64_t flops() const override {
    const int64_t turned = args_.cos_sin != nullptr ? 3 * args_.rotary_dim : 0;
    const int64_t q = turned + (args_.q_norm != nullptr ? 4 * args_.head_dim : 0);
    const int64_t k = turned + (args_.k_norm != nullptr ? 4 * args_.head_dim : 0);
    const int64_t v = args_.v_norm != nullptr ? 4 * args_.head_dim : 0;
    return args_.rows * (args_.heads * q + args_.kv_heads * (k + v));
  }
};

void make_cache(KvCache* self, uintptr_t k, uintptr_t v, int dtype, uintptr_t k_scale,
                uintptr_t v_scale, uintptr_t k_signs, double k_unit, double v_unit,
                std::array<int64_t, 4> shape,
                int64_t k_block_stride, int64_t v_block_stride, int64_t head_stride) {
  if (dtype < 0 || dtype >= kCacheDTypeCount) throw std::invalid_argument("unknown dtype code");
  new (self) KvCache{pointer(k), pointer(v), dtype, pointer(k_scale), pointer(v_scale),
                     pointer<uint8_t>(k_signs), k_unit, v_unit, shape[0], shape[1], shape[2], shape[3], k_block_stride,
                     v_block_stride, head_stride};
}

void rope_kv_write(const Kernels& kernels, Pool& pool, const Matrix& q_out, const Matrix& qkv,
                   const Indices& positions, const Matrix* cos_sin, const Matrix* q_norm,
                   const Matrix* k_norm, const Matrix* v_norm, float eps, const KvCache& cache,
                   const Indices& slots) {
  submit(pool, RopeKvWrite(kernels, q_out, qkv, positions, cos_sin, q_norm, k_norm, v_norm, eps,
                           cache, slots));
}

}  // namespace

void bind_rope_op(nb::module_& m) {
  nb::class_<KvCache>(m, "KvCache").def("__init__", &make_cache);
  m.def("rope_kv_write", &rope_kv_write, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(),
        nb::arg());
}

}  // namespace quire
