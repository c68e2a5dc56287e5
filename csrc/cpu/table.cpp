// One instruction set's kernel table. Compiled once an ISA, as are all kernel units.
#include "attention_parts.h"
#include "gemm_parts.h"
#include "lora_parts.h"
#include "quantize_codes.h"
#include "recurrent_parts.h"
#include "sample_parts.h"

#define QUIRE_STRING_(x) #x
#define QUIRE_STRING(x) QUIRE_STRING_(x)
#define QUIRE_ALL(f) {f<float>, f<bf16>, f<f16>}

namespace quire::QUIRE_ISA {

#define QUIRE_DECLARE(name, Args) \
  template <class T>              \
  void name(const Args&, int64_t task);
QUIRE_FUSED_KERNELS(QUIRE_DECLARE)
QUIRE_DECLARE(mix_rows, MixArgs)
void argmax(const ArgmaxArgs&, int64_t task);
extern const ActivationKernels kActivation;
extern const ResizeKernels kResize;

namespace {
const Kernels kTable = {
    QUIRE_STRING(QUIRE_ISA),
    {
#define QUIRE_ENTRY(name, Args) QUIRE_ALL(name),
        QUIRE_FUSED_KERNELS(QUIRE_ENTRY)
        &kActivation,
        argmax,
    },
    {&kGemmF32, &kGemmF16, &kGemmBF16, &kGemmS8, &kGemmS8A16, &kGemmU4, &kGemmU2, &kGemmU3,
     &kGemmU4Book, &kGemmU5, &kGemmU6, &kGemmU8, &kGemmF8E4M3, &kGemmF8E5M2},
    quantize_codes,
    {
        {attention<float>, attention<bf16>, attention<f16>, attention<int8_t>, attention<f8_e4m3>,
         attention<f8_e5m2>, attention<int8_t>},
        {latent_attention<float>, latent_attention<bf16>, latent_attention<f16>,
         latent_attention<int8_t>, latent_attention<f8_e4m3>, latent_attention<f8_e5m2>,
         nullptr},
        exp2_floats,
        [](const AttentionArgs&, int) -> int64_t { return kAttentionRows; },
    },
    &kSample,
    {
        QUIRE_ALL(lora_shrink),
        {lora_expand<float, float>, lora_expand<bf16, bf16>, lora_expand<f16, f16>},
        {lora_expand<float, float>, lora_expand<bf16, float>, lora_expand<f16, float>},
    },
    QUIRE_ALL(mix_rows),
    {QUIRE_ALL(causal_conv1d), QUIRE_ALL(gated_delta_rule), QUIRE_ALL(mamba2_scan)},
    &kResize,
};
}  // namespace

const Kernels& table() { return kTable; }

}  // namespace quire::QUIRE_ISA
