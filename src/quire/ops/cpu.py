"""The provider "cpu": native kernels for every operation of a decoder, on one pool of threads.

What is native depends on the model's dtype and shape alone, never on a batch, so that a request's
arithmetic cannot change from one step to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from quire import _native
from quire.core.quantization import QUANTIZATIONS
from quire.ops import moe as plain_moe
from quire.ops import native_attention, native_lora, native_moe, paged_attention, reference
from quire.ops.metadata import AttentionMetadata, KVCache
from quire.ops.native import NativeKernels
from quire.ops.native_attention import attention_fits
from quire.ops.native_fused import FusedKernels
from quire.ops.native_gemm import PackedLinear, Pool, WeightKind
from quire.ops.native_quantized import pack_quantized
from quire.ops.native_sampling import SamplingKernels
from quire.ops.packed_file import StoredLinear
from quire.ops.quantized import QuantizedWeight, Weights, parts_of
from quire.ops.rank_group import RankGroup
from quire.ops.reference import DenseWeight, Epilogue
from quire.ops.table import OP_NAMES, LinearWeight, OpTable
from quire.ops.tuning import AttentionTuning, load_tuning

_KINDS: dict[torch.dtype, WeightKind] = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
}


def cpu_ops(
    isa: str | None,
    num_threads: int,
    quantization: str | None = None,
    group: RankGroup | None = None,
) -> OpTable:
    """Operations on the kernels of `isa`, the most capable if None.

    With a `quantization` (`core.quantization` has their names) linear weights are quantized when
    they are packed. `group` are the processes that the model is dealt out among.

    Raises:
        ValueError: this machine cannot run `isa`, or nobody knows it.
    """
    kernels = NativeKernels(isa)
    pool = Pool(num_threads)
    tuning = load_tuning(kernels.isa, num_threads)
    fused = FusedKernels(kernels, pool)
    sampling = SamplingKernels(kernels, pool)
    scheme = None if quantization is None else QUANTIZATIONS[quantization]

    def pack_linear(
        weight: Weights | StoredLinear,
        bias: Tensor | None = None,
        *,
        epilogue: Epilogue = "none",
        head: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> LinearWeight:
        if isinstance(weight, StoredLinear):
            packed = PackedLinear.from_stored(kernels, pool, weight, epilogue=epilogue)
        else:
            packed = pack(parts_of(weight), bias, epilogue, head, dtype)
        if isinstance(packed, PackedLinear):
            packed.tune(tuning.of_gemm(packed.kind, *packed.shape, packed.group))
        return packed

    def pack(
        parts: list[Tensor] | list[QuantizedWeight],
        bias: Tensor | None,
        epilogue: Epilogue,
        head: bool,
        dtype: torch.dtype,
    ) -> LinearWeight:
        tensors = [part for part in parts if isinstance(part, Tensor)]
        quantized = [part for part in parts if isinstance(part, QuantizedWeight)]
        if quantized:
            return pack_quantized(kernels, pool, quantized, bias, epilogue=epilogue, dtype=dtype)
        kind = _KINDS.get(tensors[0].dtype)
        if kind is None:
            return reference.pack_linear(tensors, bias, epilogue=epilogue)
        if scheme is None:
            return PackedLinear(kernels, pool, tensors, bias, kind=kind, epilogue=epilogue)
        kind = scheme.head if head else scheme.kind
        return PackedLinear(
            kernels, pool, tensors, bias, kind=kind, epilogue=epilogue, group=scheme.group
        )

    def embedding(ids: Tensor, table: Tensor | LinearWeight) -> Tensor:
        if isinstance(table, PackedLinear):
            return table.lookup(ids)
        return fused.embedding(ids, table.weight if isinstance(table, DenseWeight) else table)

    def vocab_embedding(
        ids: Tensor, table: Tensor | LinearWeight, first: int, vocab: int
    ) -> Tensor:
        if group is None:
            return embedding(ids, table)
        held = table.weight if isinstance(table, DenseWeight) else table
        return group.vocab_embedding(pool, ids, held, first, vocab)

    def linear(x: Tensor, packed: LinearWeight, dtype: torch.dtype | None = None) -> Tensor:
        if isinstance(packed, PackedLinear):
            return packed.forward(x, dtype=dtype)
        return reference.linear(x, packed, dtype)

    def logits(x: Tensor, packed: LinearWeight) -> Tensor:
        if isinstance(packed, PackedLinear):
            return packed.forward(x, dtype=torch.float32)
        return reference.logits(x, packed)

    def moe(
        x: Tensor,
        experts: Tensor,
        weights: Tensor,
        gate_up: Sequence[LinearWeight],
        down: Sequence[LinearWeight],
    ) -> Tensor:
        if isinstance(gate_up[0], PackedLinear):
            return native_moe.moe(kernels, pool, x, experts, weights, gate_up, down)
        return plain_moe.moe(x, experts, weights, gate_up, down)

    @cache
    def attention_tuning(
        heads: int, kv_heads: int, head_dim: int, kv_dtype: torch.dtype
    ) -> AttentionTuning:
        name = str(kv_dtype).removeprefix("torch.")
        return tuning.of_attention(heads, kv_heads, head_dim, name)

    def attention(
        q: Tensor,
        kv: KVCache,
        meta: AttentionMetadata,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        causal: bool = True,
    ) -> Tensor:
        _, heads, head_dim = q.shape
        _, kv_heads, block_size, _ = kv.k.shape
        if attention_fits(heads, kv_heads, head_dim, block_size, q.dtype):
            tuned = attention_tuning(heads, kv_heads, head_dim, kv.k.dtype)
            return native_attention.paged_attention(
                kernels.handle,
                pool,
                q,
                kv,
                meta,
                scale,
                window,
                softcap,
                causal=causal,
                tuning=tuned,
            )
        return paged_attention.paged_attention(q, kv, meta, scale, window, softcap, causal)

    return replace(
        OpTable(),
        embedding=embedding,
        add=fused.add,
        all_reduce=partial(group.all_reduce, kernels, pool) if group else reference.all_reduce,
        all_gather=partial(group.all_gather, pool) if group else reference.all_gather,
        vocab_embedding=vocab_embedding,
        pack_linear=pack_linear,
        linear=linear,
        logits=logits,
        rms_norm=fused.rms_norm,
        add_rms_norm=fused.add_rms_norm,
        layer_norm=fused.layer_norm,
        add_layer_norm=fused.add_layer_norm,
        rope_kv_write=fused.rope_kv_write,
        paged_attention=attention,
        silu_mul=fused.silu_mul,
        gelu_tanh_mul=fused.gelu_tanh_mul,
        gelu_mul=fused.gelu_mul,
        gelu=fused.gelu,
        gelu_tanh=fused.gelu_tanh,
        relu=fused.relu,
        scale=fused.scale,
        softcap=fused.softcap,
        lora_add=partial(native_lora.lora_add, kernels, pool),
        moe=moe,
        argmax=fused.argmax,
        sample=sampling.sample,
        logprobs=sampling.logprobs,
        provider="cpu",
        sources=dict.fromkeys(OP_NAMES, f"native {kernels.isa}"),
        ranks=group.ranks if group else 1,
        note=f"cpu: native kernels for {kernels.isa}",
        new_plan=lambda: _native.Plan(pool),
    )
