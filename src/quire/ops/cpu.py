"""The provider "cpu": native kernels for every operation of a decoder, on one pool of threads.

What is native depends on the model's dtype and shape alone, never on a batch, so that a request's
arithmetic cannot change from one step to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import cache, partial
from typing import Self

import numpy as np

from quire import _native
from quire.core.config import LogprobsMode
from quire.core.dtypes import FLOAT32, DType, HostArray, converted
from quire.core.errors import ConfigError
from quire.core.messages import TokenLogprobs
from quire.core.quantization import QUANTIZATIONS, Quantization
from quire.core.quantized import QuantizedWeight, Weights, parts_of
from quire.ops.device import CPU
from quire.ops.interface import OP_NAMES, Ops
from quire.ops.lora import LoraTable
from quire.ops.memory import empty
from quire.ops.native.attention import AttentionKernels
from quire.ops.native.fused import FusedKernels
from quire.ops.native.gemm import Form, PackedLinear, packed_linear
from quire.ops.native.kernels import Pool, native_kernels
from quire.ops.native.latent import LatentKernels
from quire.ops.native.lora import LoraKernels
from quire.ops.native.moe import MoeKernels
from quire.ops.native.quantized import DENSE_KINDS, pack_quantized
from quire.ops.native.recurrent import RecurrentKernels
from quire.ops.native.sampling import SamplingKernels
from quire.ops.packed_file import StoredLinear
from quire.ops.rank_group import RankGroup
from quire.ops.reported import ReportedRow
from quire.ops.sample_row import SampleRow
from quire.ops.tuning import load_tuning
from quire.ops.weights import Epilogue, LinearWeight
from quire.system.limits import raise_stack

_STACK_BYTES = 2**21
"""Least stack of a thread that runs kernels, as `csrc/cpu/pool` gives its own. Twice what attention
on AMX tiles takes."""


class CpuOps(
    FusedKernels, AttentionKernels, RecurrentKernels, LatentKernels, LoraKernels, MoeKernels,
    Ops[HostArray],
):  # fmt: skip
    """Operations on the kernels of `isa`, the most capable if None.

    Args:
        quantization: linear weights are quantized when they are packed (`core.quantization` has
            the names).
        group: the processes that the model is split among.

    Raises:
        ValueError: this machine cannot run `isa`, or nobody knows it.
        ConfigError: the system's limit on stacks is too low.
    """

    provider = "cpu"

    def __init__(
        self,
        isa: str | None,
        num_threads: int,
        quantization: str | None = None,
        group: RankGroup | None = None,
    ) -> None:
        _ensure_stack()
        kernels, pool = native_kernels(isa), Pool(num_threads)
        FusedKernels.__init__(self, kernels, pool)
        Ops.__init__(self, CPU)
        self._group = group
        self._tuning = load_tuning(kernels.isa, num_threads)
        self._tuned = cache(self._tuning.of_attention)
        self._scheme = None if quantization is None else QUANTIZATIONS[quantization]
        self._sampling = SamplingKernels(kernels, pool)
        self.ranks = 1 if group is None else group.ranks
        self.sources = dict.fromkeys(OP_NAMES, f"native {kernels.isa}")
        self.note = f"cpu: native kernels for {kernels.isa}"
        self.new_plan, self.sampler = partial(_native.Plan, pool), self._sampling.native

    def whole(self, quantization: str | None) -> Self:
        changed = copy(self)
        changed._scheme = None if quantization is None else QUANTIZATIONS[quantization]
        changed._group, changed.ranks = None, 1
        return changed

    def use_threads(self, num_threads: int) -> None:
        """Do nothing: the native pool already has its threads."""

    def array(self, values: HostArray) -> HostArray:
        """Return the same array; a copy if it is read-only, as mapped files are."""
        return values if values.flags.writeable else values.copy()

    def numpy(self, values: HostArray) -> HostArray:
        return values

    def empty(self, shape: tuple[int, ...], dtype: DType) -> HostArray:
        return empty(shape, dtype)

    def lora_table(
        self, columns: int, parts: Sequence[int], adapters: int, dtype: DType
    ) -> LoraTable:
        return LoraTable(columns, parts, adapters, dtype)

    def inference(self) -> AbstractContextManager[object]:
        return nullcontext()

    def pack_linear(
        self,
        weight: Weights | StoredLinear,
        bias: HostArray | None = None,
        *,
        epilogue: Epilogue = "none",
        head: bool = False,
        exact: bool = False,
        dtype: DType = FLOAT32,
        experts: int = 1,
    ) -> LinearWeight:
        if isinstance(weight, StoredLinear):
            packed = PackedLinear.from_stored(self._kernels, self._pool, weight, epilogue=epilogue)
        else:
            scheme = None if exact else self._scheme
            form = Form(bias=bias, epilogue=epilogue, experts=experts)
            packed = self._pack(parts_of(weight), dtype, scheme, form, head=head)
        n, k = packed.shape
        packed.tune(self._tuning.of_gemm(packed.kind, n // packed.experts, k, packed.group))
        return packed

    def _pack(
        self,
        parts: list[HostArray] | list[QuantizedWeight],
        dtype: DType,
        scheme: Quantization | None,
        form: Form,
        *,
        head: bool,
    ) -> PackedLinear:
        kernels, pool = self._kernels, self._pool
        arrays = [part for part in parts if isinstance(part, np.ndarray)]
        quantized = [part for part in parts if isinstance(part, QuantizedWeight)]
        if quantized:
            return pack_quantized(kernels, pool, quantized, dtype, **form)
        kind = DENSE_KINDS.get(arrays[0].dtype)
        if kind is None:
            raise ValueError(f"weights are {arrays[0].dtype}; wanted float32, bfloat16 or float16")
        group = 128
        if scheme is not None:
            kind, group = scheme.head if head else scheme.kind, scheme.group
        return PackedLinear(kernels, pool, arrays, kind=kind, group=group, **form)

    def embedding(self, ids: HostArray, table: HostArray | LinearWeight) -> HostArray:
        if isinstance(table, PackedLinear):
            return table.lookup(ids)
        return self.lookup(ids, _rows_of(table))

    def vocab_embedding(
        self, ids: HostArray, table: HostArray | LinearWeight, first: int, vocab: int
    ) -> HostArray:
        if self._group is None:
            return self.embedding(ids, table)
        held = table if isinstance(table, PackedLinear) else _rows_of(table)
        return self._group.vocab_embedding(self._pool, ids, held, first, vocab)

    def linear(self, x: HostArray, packed: LinearWeight, dtype: DType | None = None) -> HostArray:
        return packed_linear(packed).forward(x, dtype=dtype)

    def logits(self, x: HostArray, packed: LinearWeight) -> HostArray:
        return packed_linear(packed).forward(x, dtype=FLOAT32)

    def all_reduce(self, x: HostArray, dtype: DType) -> HostArray:
        if self._group is None:
            return converted(x, dtype)
        return self._group.all_reduce(self._kernels, self._pool, x, dtype)

    def all_gather(self, x: HostArray, first: int, width: int) -> HostArray:
        return x if self._group is None else self._group.all_gather(self._pool, x, first, width)

    def _norm_all_heads(
        self,
        parts: tuple[HostArray, HostArray],
        weights: tuple[HostArray, HostArray],
        eps: float,
        head_dim: int,
    ) -> None:
        if self._group is None:
            super()._norm_all_heads(parts, weights, eps, head_dim)
        else:
            self._group.norm_all_heads(self._kernels, self._pool, parts, weights, eps, head_dim)

    def sample(self, logits: HostArray, rows: Sequence[SampleRow]) -> list[int]:
        return self._sampling.sample(logits, rows)

    def report(
        self, logits: HostArray, rows: Sequence[ReportedRow], mode: LogprobsMode
    ) -> list[TokenLogprobs]:
        return self._sampling.report(logits, rows, mode)


def _rows_of(table: HostArray | LinearWeight) -> HostArray:
    if not isinstance(table, np.ndarray):
        raise TypeError(f"native kernels have no table of a {type(table).__name__}")
    return table


def _ensure_stack() -> None:
    """Check that the calling thread's stack can hold what kernels put there."""
    if (most := raise_stack(_STACK_BYTES)) < _STACK_BYTES:
        raise ConfigError(
            f"The system limits stacks to {most >> 10} KiB; kernels need {_STACK_BYTES >> 10}.",
            fix="Raise the limit (ulimit -s 8192).",
        )
