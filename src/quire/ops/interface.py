"""The operations that model code calls. Their signatures stand here once, and mypy checks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from quire.core.dtypes import FLOAT32, DType, HostArray
from quire.core.quantized import QuantizedWeight as HostWeight
from quire.ops import reference
from quire.ops.array import Array
from quire.ops.device import CPU, Device
from quire.ops.lora import LoraTable, lora_add
from quire.ops.memory import empty
from quire.ops.moe import moe, route
from quire.ops.paged_attention import paged_attention
from quire.ops.quantized import QuantizedWeight, Weights, parts_of
from quire.ops.reference import Epilogue, LinearWeight
from quire.ops.sampling import argmax, logprobs, sample
from quire.ops.torch_arrays import array, tensor, torch_dtype

if TYPE_CHECKING:
    from quire import _native
    from quire.ops.packed_file import StoredLinear


class Ops:
    """All operations in plain torch, on any device; a provider overrides what it computes itself.

    An op's signature is that of its torch function: mypy holds model code and overrides to it.
    Each is documented there (`ops.reference`, `ops.moe`, `ops.sampling` …).

    Attributes:
        provider: "reference" or "cpu".
        sources: op → who computes it: "reference" or "native avx512" …
        torch_reasons: op → why torch computed it at its last call, where this is not "reference".
        note: why this provider was chosen, where the choice was "auto".
        ranks: processes among which layers are split: over which `all_reduce` sums.
        new_plan: makes an empty plan that these ops can be recorded into (see `ops.plan`); None
            where nothing is native.
        device: where they compute: of all their tensors, unless the op says "on the host".
        isa: instruction set of the kernels, for reports.
    """

    embedding = staticmethod(reference.embedding)
    add = staticmethod(reference.add)
    linear = staticmethod(reference.linear)
    logits = staticmethod(reference.logits)
    all_reduce = staticmethod(reference.all_reduce)
    all_gather = staticmethod(reference.all_gather)
    vocab_embedding = staticmethod(reference.vocab_embedding)
    rms_norm = staticmethod(reference.rms_norm)
    add_rms_norm = staticmethod(reference.add_rms_norm)
    layer_norm = staticmethod(reference.layer_norm)
    add_layer_norm = staticmethod(reference.add_layer_norm)
    rope_kv_write = staticmethod(reference.rope_kv_write)
    paged_attention = staticmethod(paged_attention)
    activation = staticmethod(reference.activation)
    scale = staticmethod(reference.scale)
    softcap = staticmethod(reference.softcap)
    lora_add = staticmethod(lora_add)
    route = staticmethod(route)
    moe = staticmethod(moe)
    argmax = staticmethod(argmax)
    sample = staticmethod(sample)
    logprobs = staticmethod(logprobs)

    provider = "reference"
    note = ""
    ranks = 1
    new_plan: Callable[[], _native.Plan] | None = None

    def __init__(self, device: Device = CPU) -> None:
        self.device = device
        self.sources = dict.fromkeys(OP_NAMES, "reference")
        self.torch_reasons: dict[str, str] = {}

    @property
    def isa(self) -> str:
        kind = torch.backends.cpu.get_cpu_capability() if self.device.is_host else "cuda"
        return f"torch {kind.lower()}"

    def pack_linear(
        self,
        weight: Weights | StoredLinear,
        bias: HostArray | Tensor | None = None,
        *,
        epilogue: Epilogue = "none",
        head: bool = False,
        dtype: DType | torch.dtype = FLOAT32,
    ) -> LinearWeight:
        """`reference.pack_linear` on the device, of a weight and a bias on the host.

        A provider's `StoredLinear` is what it has packed before.
        """
        if not isinstance(weight, (Tensor, np.ndarray, QuantizedWeight, HostWeight, Sequence)):
            raise TypeError("torch takes no stored weight")
        parts: Any = [part.to(self.device.torch) for part in parts_of(weight)]
        if bias is not None:
            bias = tensor(bias).to(self.device.torch)
        return reference.pack_linear(
            parts, bias, epilogue=epilogue, head=head, dtype=torch_dtype(dtype)
        )

    def array(self, values: HostArray) -> Array:
        """Return the values on the device; on the host it shares their memory if it can."""
        return tensor(values).to(self.device.torch)

    def numpy(self, values: Array) -> HostArray:
        """Return the values on the host: their own memory if they are there, else a copy."""
        return array(values)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Allocate an array on the device; what it holds means nothing.

        On the host see `ops.memory`.
        """
        if self.device.is_host:
            return empty(shape, torch_dtype(dtype))
        return torch.empty(shape, dtype=torch_dtype(dtype), device=self.device.torch)

    def inference(self) -> AbstractContextManager[object]:
        """Return the context in which a step is computed."""
        return torch.inference_mode()

    def use_threads(self, num_threads: int) -> None:
        """Let torch compute with so many threads."""
        torch.set_num_threads(num_threads)

    def lora_table(
        self, columns: int, parts: Sequence[int], adapters: int, dtype: DType
    ) -> LoraTable:
        """Return an empty `LoraTable` on the device."""
        return LoraTable(columns, parts, adapters, torch_dtype(dtype), self.device.torch)

    def using(self, **ops: Callable[..., Any]) -> Self:
        """Return a copy that calls these in place of its own ops of these names."""
        assert all(callable(getattr(self, name, None)) for name in ops)
        changed = copy(self)
        vars(changed).update(ops)
        return changed

    def wrapped(self, wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> Self:
        """Return a copy that calls wrap(name, op) in place of each op of a step."""
        return self.using(**{name: wrap(name, getattr(self, name)) for name in OP_NAMES})


OP_NAMES = tuple(name for name, op in vars(Ops).items() if isinstance(op, staticmethod))
"""What a step may call: all but `pack_linear`."""
SAMPLING_OPS = frozenset({"argmax", "sample", "logprobs"})
"""Those that take logits and return to Python."""


def torch_note(torch_ops: Mapping[str, str]) -> str:
    """Return the ops that torch computes for a native provider, with the reasons, for the log."""
    return ", ".join(f"{op} in torch: {reason}" for op, reason in sorted(torch_ops.items()))
