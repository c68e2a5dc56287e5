// AMX's kernel table: that of avx512_vnni, with tiles for the products that have them.
#include "attention_parts.h"
#include "gemm_parts.h"

namespace quire::amx {

namespace {

using namespace QUIRE_ISA;

template <const Gemm& kVector>
void task_with_hints(const GemmArgs& a, int64_t index) {
  kVector.task(with_hints(a), index);
}

// A kind of weight that has no tiles.
template <const Gemm& kVector>
const Gemm* vector_gemm() {
  static Gemm gemm = kVector;
  gemm.task = task_with_hints<kVector>;
  return &gemm;
}

Kernels with_tiles() {
  Kernels k = QUIRE_ISA::table();
  k.isa = "amx";
  k.gemm[kWeightF32] = vector_gemm<kGemmF32>();
  k.gemm[kWeightF16] = vector_gemm<kGemmF16>();
  k.gemm[kWeightBF16] = &kGemmTilesBF16;
  k.gemm[kWeightS8] = &kGemmTilesS8;
  k.gemm[kWeightS8A16] = &kGemmTilesS8A16;
  k.gemm[kWeightU2] = &kGemmTilesU2;
  k.gemm[kWeightU3] = &kGemmTilesU3;
  k.gemm[kWeightU4] = &kGemmTilesU4;
  k.gemm[kWeightU4Book] = &kGemmTilesU4Book;
  k.gemm[kWeightU5] = &kGemmTilesU5;
  k.gemm[kWeightU6] = &kGemmTilesU6;
  k.gemm[kWeightU8] = &kGemmTilesU8;
  k.gemm[kWeightF8E4M3] = &kGemmTilesF8E4M3;
  k.gemm[kWeightF8E5M2] = &kGemmTilesF8E5M2;
  auto& attention = k.attention.paged_attention;
  attention[kBFloat16] = tiled_attention<bf16>;
  attention[kInt8] = attention[kInt4] = tiled_attention<int8_t>;
  attention[kFloat8E4M3] = tiled_attention<f8_e4m3>;
  attention[kFloat8E5M2] = tiled_attention<f8_e5m2>;
  k.attention.tile_rows = tiled_attention_rows;
  auto& latent = k.attention.latent_attention;
  latent[kBFloat16] = tiled_latent_attention<bf16>;
  latent[kInt8] = tiled_latent_attention<int8_t>;
  latent[kFloat8E4M3] = tiled_latent_attention<f8_e4m3>;
  latent[kFloat8E5M2] = tiled_latent_attention<f8_e5m2>;
  return k;
}

}  // namespace

const Kernels& table() {
  static const Kernels kernels = with_tiles();
  return kernels;
}

}  // namespace quire::amx
