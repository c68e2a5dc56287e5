"""The provider "cpu": native kernels for every operation of a decoder, on one pool of threads.

What is native depends on the model's dtype and shape alone, never on a batch, so that a request's
arithmetic cannot change from one step to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import torch
from torch import Tensor

from quire import _native
from quire.core.dtypes import FLOAT32, DType, HostArray
from quire.core.messages import TokenLogprobs
from quire.core.quantization import QUANTIZATIONS
from quire.ops import native_attention, native_lora, native_moe
from quire.ops.interface import OP_NAMES
from quire.ops.lora import LoraTable
from quire.ops.metadata import AttentionMetadata, KVCache
from quire.ops.native import NativeKernels
from quire.ops.native_fused import FusedKernels
from quire.ops.native_gemm import PackedLinear, Pool, WeightKind
from quire.ops.native_quantized import pack_quantized
from quire.ops.native_sampling import SamplingKernels
from quire.ops.packed_file import StoredLinear
from quire.ops.quantized import QuantizedWeight, Weights, parts_of
from quire.ops.rank_group import RankGroup
from quire.ops.sample_row import SampleRow
from quire.ops.torch_arrays import tensor, torch_dtype
from quire.ops.torch_ops import moe as plain_moe
from quire.ops.torch_ops import reference
from quire.ops.torch_ops.provider import TorchOps
from quire.ops.torch_ops.reference import DenseWeight
from quire.ops.tuning import load_tuning
from quire.ops.weights import Epilogue, LinearWeight

_KINDS: dict[torch.dtype, WeightKind] = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
}


class CpuOps(FusedKernels, TorchOps):
    """Operations on the kernels of `isa`, the most capable if None.

    Args:
        quantization: linear weights are quantized when they are packed (`core.quantization` has
            the names).
        group: the processes that the model is split among.

    Raises:
        ValueError: this machine cannot run `isa`, or nobody knows it.
    """

    provider = "cpu"

    def __init__(
        self,
        isa: str | None,
        num_threads: int,
        quantization: str | None = None,
        group: RankGroup | None = None,
    ) -> None:
        kernels, pool = NativeKernels(isa), Pool(num_threads)
        FusedKernels.__init__(self, kernels, pool)
        TorchOps.__init__(self)
        self._table, self._threads, self._group = kernels, pool, group
        self._tuning = load_tuning(kernels.isa, num_threads)
        self._attention_tuning = cache(self._tuning.of_attention)
        self._scheme = None if quantization is None else QUANTIZATIONS[quantization]
        self._sampling = SamplingKernels(kernels, pool)
        self.ranks = 1 if group is None else group.ranks
        self.sources = dict.fromkeys(OP_NAMES, f"native {kernels.isa}")
        self.note = f"cpu: native kernels for {kernels.isa}"
        self.new_plan = partial(_native.Plan, pool)

    @property
    def isa(self) -> str:
        return self._table.isa

    def use_threads(self, num_threads: int) -> None:
        """Leave the cores to the native pool, which has its threads already."""
        torch.set_num_threads(1)

    def pack_linear(
        self,
        weight: Weights | StoredLinear,
        bias: HostArray | None = None,
        *,
        epilogue: Epilogue = "none",
        head: bool = False,
        dtype: DType = FLOAT32,
    ) -> LinearWeight:
        if isinstance(weight, StoredLinear):
            packed: LinearWeight = PackedLinear.from_stored(
                self._table, self._threads, weight, epilogue=epilogue
            )
        else:
            given = None if bias is None else tensor(bias)
            packed = self._pack(parts_of(weight), given, epilogue, head, torch_dtype(dtype))
        if isinstance(packed, PackedLinear):
            packed.tune(self._tuning.of_gemm(packed.kind, *packed.shape, packed.group))
        return packed

    def _pack(
        self,
        parts: list[Tensor] | list[QuantizedWeight],
        bias: Tensor | None,
        epilogue: Epilogue,
        head: bool,
        dtype: torch.dtype,
    ) -> LinearWeight:
        kernels, pool, scheme = self._table, self._threads, self._scheme
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

    def embedding(self, ids: Tensor, table: Tensor | LinearWeight) -> Tensor:
        if isinstance(table, PackedLinear):
            return table.lookup(ids)
        return self.lookup(ids, reference.rows_of(table))

    def vocab_embedding(
        self, ids: Tensor, table: Tensor | LinearWeight, first: int, vocab: int
    ) -> Tensor:
        if self._group is None:
            return self.embedding(ids, table)
        held = table if isinstance(table, PackedLinear) else reference.rows_of(table)
        return self._group.vocab_embedding(self._threads, ids, held, first, vocab)

    def linear(self, x: Tensor, packed: LinearWeight, dtype: DType | None = None) -> Tensor:
        if isinstance(packed, PackedLinear):
            return packed.forward(x, dtype=None if dtype is None else torch_dtype(dtype))
        self._note_torch("linear", packed)
        return reference.linear(x, packed, dtype)

    def logits(self, x: Tensor, packed: LinearWeight) -> Tensor:
        if isinstance(packed, PackedLinear):
            return packed.forward(x, dtype=torch.float32)
        self._note_torch("logits", packed)
        return reference.logits(x, packed)

    def all_reduce(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if self._group is None:
            return reference.all_reduce(x, dtype)
        return self._group.all_reduce(self._table, self._threads, x, dtype)

    def all_gather(self, x: Tensor, first: int, width: int) -> Tensor:
        return x if self._group is None else self._group.all_gather(self._threads, x, first, width)

    def lora_add(self, adapter: Tensor, y: Tensor, x: Tensor, table: LoraTable) -> Tensor:
        return native_lora.lora_add(self._table, self._threads, adapter, y, x, table)

    def moe(
        self,
        x: Tensor,
        experts: Tensor,
        weights: Tensor,
        gate_up: Sequence[LinearWeight],
        down: Sequence[LinearWeight],
    ) -> Tensor:
        up = [expert for expert in gate_up if isinstance(expert, PackedLinear)]
        out = [expert for expert in down if isinstance(expert, PackedLinear)]
        if (len(up), len(out)) == (len(gate_up), len(down)):
            return native_moe.moe(self._table, self._threads, x, experts, weights, up, out)
        self._note_torch("moe", gate_up[0])
        return plain_moe.moe(x, experts, weights, gate_up, down)

    def paged_attention(
        self,
        q: Tensor,
        cache: KVCache,
        meta: AttentionMetadata,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        causal: bool = True,
    ) -> Tensor:
        _, heads, head_dim = q.shape
        kv_heads = cache.k.shape[1]
        name = str(cache.k.dtype).removeprefix("torch.")
        return native_attention.paged_attention(
            self._table.handle,
            self._threads,
            q,
            cache,
            meta,
            scale,
            window,
            softcap,
            causal=causal,
            tuning=self._attention_tuning(heads, kv_heads, head_dim, name),
        )

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[int]:
        return self._sampling.sample(logits, rows)

    def logprobs(
        self, logits: Tensor, rows: Sequence[int], tokens: Sequence[int], counts: Sequence[int]
    ) -> list[TokenLogprobs]:
        return self._sampling.logprobs(logits, rows, tokens, counts)

    def _note_torch(self, op: str, weight: LinearWeight) -> None:
        dtype = weight.weight.dtype if isinstance(weight, DenseWeight) else None
        self.torch_reasons[op] = f"weights of {str(dtype).removeprefix('torch.')}"
