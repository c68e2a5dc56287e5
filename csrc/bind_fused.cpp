// Bindings of the small operations (cpu/fused.h): module functions (kernels, pool, dtype, addresses,
// sizes, strides), which release the GIL.
#include "bind.h"

#include <stdexcept>
#include <vector>

#include "submit.h"

namespace nb = nanobind;

namespace quire {

namespace {

using Address = uintptr_t;

const int64_t* indices(Address address) { return pointer<const int64_t>(address); }
const float* floats(Address address) { return pointer<const float>(address); }

int64_t size_of(int dtype) {
  return dtype_of(dtype) == kFloat32 ? 4 : 2;
}

void rms_norm(const Kernels& kernels, Pool& pool, int dtype, Address y, Address x,
              Address weight, int64_t rows, int64_t cols, int64_t y_stride, int64_t x_stride,
              float eps, bool wide_weight) {
  const int64_t size = size_of(dtype);
  const RmsNormArgs a{pointer(y), pointer(x), pointer(weight), rows, cols,
                      y_stride,   x_stride,   eps,             wide_weight, 0};
  submit(pool, RowOp<RmsNormArgs>{"rms_norm", kernels.fused.rms_norm[dtype], a, 2 * cols * size});
}

void add_rms_norm(const Kernels& kernels, Pool& pool, int dtype, Address y,
                  Address residual_out, Address x, Address residual, Address weight, int64_t rows,
                  int64_t cols, int64_t y_stride, int64_t residual_out_stride, int64_t x_stride,
                  int64_t residual_stride, float eps, bool wide_weight) {
  const int64_t size = size_of(dtype);
  const AddRmsNormArgs a{pointer(y),        pointer(residual_out), pointer(x),
                         pointer(residual), pointer(weight),       rows,
                         cols,              y_stride,              residual_out_stride,
                         x_stride,          residual_stride,       eps,
                         wide_weight,       0};
  submit(pool, RowOp<AddRmsNormArgs>{"add_rms_norm", kernels.fused.add_rms_norm[dtype], a,
                                     4 * cols * size});
}

void layer_norm(const Kernels& kernels, Pool& pool, int dtype, Address y, Address x,
                Address weight, Address bias, int64_t rows, int64_t cols, int64_t y_stride,
                int64_t x_stride, float eps) {
  const int64_t size = size_of(dtype);
  const LayerNormArgs a{pointer(y), pointer(x), pointer(weight), pointer(bias), rows,
                  cols,       y_stride,   x_stride,        eps,           0};
  submit(pool,
         RowOp<LayerNormArgs>{"layer_norm", kernels.fused.layer_norm[dtype], a, 2 * cols * size});
}

void add_layer_norm(const Kernels& kernels, Pool& pool, int dtype, Address y,
                    Address residual_out, Address x, Address residual, Address weight,
                    Address bias, int64_t rows, int64_t cols, int64_t y_stride,
                    int64_t residual_out_stride, int64_t x_stride, int64_t residual_stride,
                    float eps) {
  const int64_t size = size_of(dtype);
  const AddLayerNormArgs a{pointer(y),        pointer(residual_out), pointer(x),
                     pointer(residual), pointer(weight),       pointer(bias),
                     rows,              cols,                  y_stride,
                     residual_out_stride, x_stride,            residual_stride,
                     eps,               0};
  submit(pool, RowOp<AddLayerNormArgs>{"add_layer_norm", kernels.fused.add_layer_norm[dtype], a,
                                       4 * cols * size});
}

using Unary = void (*const (&)[kDTypeCount])(const UnaryArgs&, int64_t);

// `reads` is how many times `cols` a row of x is wide.
void unary(const char* name, Unary kernel, Pool& pool, int dtype, Address y, Address x, int64_t rows,
           int64_t cols, int64_t y_stride, int64_t x_stride, int64_t reads, float parameter = 0.0f) {
  const int64_t size = size_of(dtype);
  const UnaryArgs a{pointer(y), pointer(x), rows, cols, y_stride, x_stride, parameter, 0};
  submit(pool, RowOp<UnaryArgs>{name, kernel[dtype], a, (1 + reads) * cols * size});
}

void silu_mul(const Kernels& k, Pool& pool, int dtype, Address y, Address x, int64_t rows,
              int64_t cols, int64_t y_stride, int64_t x_stride) {
  unary("silu_mul", k.fused.silu_mul, pool, dtype, y, x, rows, cols, y_stride, x_stride, 2);
}
void gelu_tanh_mul(const Kernels& k, Pool& pool, int dtype, Address y, Address x, int64_t rows,
                   int64_t cols, int64_t y_stride, int64_t x_stride) {
  unary("gelu_tanh_mul", k.fused.gelu_tanh_mul, pool, dtype, y, x, rows, cols, y_stride, x_stride,
        2);
}
void gelu_mul(const Kernels& k, Pool& pool, int dtype, Address y, Address x, int64_t rows,
              int64_t cols, int64_t y_stride, int64_t x_stride) {
  unary("gelu_mul", k.fused.gelu_mul, pool, dtype, y, x, rows, cols, y_stride, x_stride, 2);
}
void gelu(const Kernels& k, Pool& pool, int dtype, Address y, Address x, int64_t rows,
          int64_t cols, int64_t y_stride, int64_t x_stride) {
  unary("gelu", k.fused.gelu, pool, dtype, y, x, rows, cols, y_stride, x_stride, 1);
}
void gelu_tanh(const Kernels& k, Pool& pool, int dtype, Address y, Address x, int64_t rows,
               int64_t cols, int64_t y_stride, int64_t x_stride) {
  unary("gelu_tanh", k.fused.gelu_tanh, pool, dtype, y, x, rows, cols, y_stride, x_stride, 1);
}
void relu(const Kernels& k, Pool& pool, int dtype, Address y, Address x, int64_t rows,
          int64_t cols, int64_t y_stride, int64_t x_stride) {
  unary("relu", k.fused.relu, pool, dtype, y, x, rows, cols, y_stride, x_stride, 1);
}
void scale(const Kernels& k, Pool& pool, int dtype, Address y, Address x, int64_t rows,
           int64_t cols, int64_t y_stride, int64_t x_stride, float factor) {
  unary("scale", k.fused.scale, pool, dtype, y, x, rows, cols, y_stride, x_stride, 1, factor);
}
void softcap(const Kernels& k, Pool& pool, int dtype, Address y, Address x, int64_t rows,
             int64_t cols, int64_t y_stride, int64_t x_stride, float cap) {
  unary("softcap", k.fused.softcap, pool, dtype, y, x, rows, cols, y_stride, x_stride, 1, cap);
}

void add(const Kernels& kernels, Pool& pool, int dtype, Address y, Address left,
         Address right, int64_t rows, int64_t cols, int64_t y_stride, int64_t left_stride,
         int64_t right_stride) {
  const int64_t size = size_of(dtype);
  const AddArgs a{pointer(y), pointer(left), pointer(right), rows,        cols,
            y_stride,   left_stride,   right_stride,   0};
  submit(pool, RowOp<AddArgs>{"add", kernels.fused.add[dtype], a, 3 * cols * size});
}

void embedding(const Kernels& kernels, Pool& pool, int dtype, Address y, Address ids,
               Address weight, Address positions, Address position_weight, int64_t rows,
               int64_t cols, int64_t y_stride, int64_t weight_stride, int64_t position_stride,
               int64_t vocab, int64_t max_positions) {
  const int64_t size = size_of(dtype);
  const EmbeddingArgs a{pointer(y), indices(ids), pointer(weight), indices(positions),
                        pointer(position_weight), rows, cols, y_stride, weight_stride,
                        position_stride, vocab, max_positions, 0};
  submit(pool,
         RowOp<EmbeddingArgs>{"embedding", kernels.fused.embedding[dtype], a, 2 * cols * size});
}

// The same from a weight packed for linear layers, which a tied embedding shares with lm_head.
void packed_embedding(Pool& pool, const PackedWeight& weight, int dtype, Address y, Address ids,
                      int64_t rows) {
  submit(pool, LookupOp{&weight, dtype_of(dtype), pointer(y), indices(ids), rows});
}

void rotary(const Kernels& kernels, Pool& pool, int dtype, Address y, Address x,
            Address positions, Address cos_sin, int64_t rows, int64_t heads, int64_t head_dim,
            int64_t rotary_dim, int64_t y_stride, int64_t x_stride, int64_t x_head_stride,
            int64_t max_positions) {
  const int64_t size = size_of(dtype);
  const RotaryArgs a{pointer(y), pointer(x), indices(positions), floats(cos_sin), rows, heads,
                     head_dim, rotary_dim, y_stride, x_stride, x_head_stride, max_positions, 0};
  submit(pool, RowOp<RotaryArgs>{"rotary", kernels.fused.rotary[dtype], a,
                                 2 * heads * head_dim * size});
}

void rope_kv_write(const Kernels& kernels, Pool& pool, int dtype, Address q_out, Address q,
                   Address k, Address v, int64_t q_stride, int64_t k_stride, int64_t v_stride,
                   Address positions, Address cos_sin, Address q_norm, Address k_norm,
                   bool wide_norms, Address k_cache, Address v_cache, int cache_dtype,
                   Address k_scale, Address v_scale, float k_unit, float v_unit,
                   Address slot_mapping, int64_t block_size, int64_t block_stride,
                   int64_t head_stride, int64_t rows, int64_t heads, int64_t kv_heads,
                   int64_t head_dim, int64_t rotary_dim, float eps, int64_t max_positions,
                   int64_t slots) {
  const int64_t size = size_of(dtype);
  const RopeKvArgs a{pointer(q_out), pointer(q), pointer(k), pointer(v), q_stride, k_stride,
                     v_stride, indices(positions), floats(cos_sin), pointer(q_norm),
                     pointer(k_norm), wide_norms, pointer(k_cache), pointer(v_cache),
                     cache_dtype_of(cache_dtype), pointer<bf16>(k_scale), pointer<bf16>(v_scale),
                     k_unit, v_unit,
                     indices(slot_mapping), block_size, block_stride, head_stride, rows, heads,
                     kv_heads, head_dim, rotary_dim, eps, max_positions, slots, 0};
  submit(pool, RowOp<RopeKvArgs>{"rope_kv_write", kernels.fused.rope_kv_write[dtype], a,
                                 2 * (heads + 2 * kv_heads) * head_dim * size});
}

// tokens[r]: the first index of the row's largest, or -1 where peaks[r] (NaN outranks all) is not
// finite.
void argmax(const Kernels& kernels, Pool& pool, Address tokens, Address peaks, Address x,
            int64_t rows, int64_t cols, int64_t x_stride) {
  const nb::gil_scoped_release unlocked;
  const int64_t pieces = (cols + kArgmaxColumns - 1) / kArgmaxColumns;
  std::vector<float> piece_peaks(static_cast<size_t>(rows * pieces));
  std::vector<int64_t> piece_tokens(static_cast<size_t>(rows * pieces));
  const ArgmaxArgs a{floats(x), rows, cols, x_stride, piece_peaks.data(), piece_tokens.data()};
  run_tasks(pool, rows * pieces, [&](int64_t task) { kernels.fused.argmax(a, task); });
  int64_t* token = reinterpret_cast<int64_t*>(tokens);
  float* peak = reinterpret_cast<float*>(peaks);
  for (int64_t r = 0; r < rows; ++r) {
    const float* candidates = piece_peaks.data() + r * pieces;
    int64_t best = 0;
    for (int64_t i = 0; i < pieces && candidates[best] == candidates[best]; ++i) {
      if (!(candidates[i] <= candidates[best])) best = i;  // larger, or NaN
    }
    peak[r] = candidates[best];
    const bool finite = peak[r] - peak[r] == 0.0f;
    token[r] = finite ? piece_tokens[static_cast<size_t>(r * pieces + best)] : -1;
  }
}

}  // namespace

void bind_fused(nb::module_& m) {
  m.def("rms_norm", &rms_norm);
  m.def("add_rms_norm", &add_rms_norm);
  m.def("layer_norm", &layer_norm);
  m.def("add_layer_norm", &add_layer_norm);
  m.def("silu_mul", &silu_mul);
  m.def("gelu_tanh_mul", &gelu_tanh_mul);
  m.def("gelu_mul", &gelu_mul);
  m.def("gelu", &gelu);
  m.def("gelu_tanh", &gelu_tanh);
  m.def("relu", &relu);
  m.def("scale", &scale);
  m.def("softcap", &softcap);
  m.def("add", &add);
  m.def("embedding", &embedding);
  m.def("packed_embedding", &packed_embedding);
  m.def("rotary", &rotary);
  m.def("rope_kv_write", &rope_kv_write);
  m.def("argmax", &argmax);
}

}  // namespace quire
