// One instruction set's kernel table. Compiled once an ISA, as are all kernel units.
#include "activation.h"
#include "attention_parts.h"
#include "embedding.h"
#include "gemm_parts.h"
#include "layer_norm.h"
#include "lora_parts.h"
#include "mix_parts.h"
#include "norm.h"
#include "quantize_codes.h"
#include "rope.h"
#include "sample_parts.h"
#include "select.h"

#define QUIRE_STRING_(x) #x
#define QUIRE_STRING(x) QUIRE_STRING_(x)
#define QUIRE_ALL(f) {f<float>, f<bf16>, f<f16>}

namespace quire::QUIRE_ISA {

namespace {
const Kernels kTable = {
    QUIRE_STRING(QUIRE_ISA),
    {
        QUIRE_ALL(rms_norm),
        QUIRE_ALL(add_rms_norm),
        QUIRE_ALL(layer_norm),
        QUIRE_ALL(add_layer_norm),
        QUIRE_ALL(silu_mul),
        QUIRE_ALL(gelu_tanh_mul),
        QUIRE_ALL(gelu_mul),
        QUIRE_ALL(gelu),
        QUIRE_ALL(gelu_tanh),
        QUIRE_ALL(relu),
        QUIRE_ALL(scale),
        QUIRE_ALL(softcap),
        QUIRE_ALL(add_rows),
        QUIRE_ALL(embedding),
        QUIRE_ALL(rotary),
        QUIRE_ALL(rope_kv_write),
        argmax,
    },
#if defined(QUIRE_TILES)
    {&kGemmF32, &kGemmF16, &kGemmTilesBF16, &kGemmTilesS8, &kGemmTilesS8A16, &kGemmTilesU4,
     &kGemmTilesU2, &kGemmTilesU3, &kGemmTilesU4Book, &kGemmTilesU5, &kGemmTilesU6, &kGemmTilesU8,
     &kGemmTilesF8E4M3, &kGemmTilesF8E5M2},
#else
    {&kGemmF32, &kGemmF16, &kGemmBF16, &kGemmS8, &kGemmS8A16, &kGemmU4, &kGemmU2, &kGemmU3,
     &kGemmU4Book, &kGemmU5, &kGemmU6, &kGemmU8, &kGemmF8E4M3, &kGemmF8E5M2},
#endif
    quantize_codes,
    {
        {paged_attention<float>, paged_attention<bf16>, paged_attention<f16>,
         paged_attention<int8_t>, paged_attention<f8_e4m3>, paged_attention<f8_e5m2>},
        exp2_floats,
    },
    &kSample,
    {
        QUIRE_ALL(lora_shrink),
        {lora_expand<float, float>, lora_expand<bf16, bf16>, lora_expand<f16, f16>},
        {lora_expand<float, float>, lora_expand<bf16, float>, lora_expand<f16, float>},
    },
    QUIRE_ALL(mix_rows),
};
}  // namespace

const Kernels& table() { return kTable; }

}  // namespace quire::QUIRE_ISA
