"""The provider "reference": every op in plain torch, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor

from quire.core.dtypes import FLOAT32, DType, HostArray
from quire.core.quantized import QuantizedWeight, Weights, parts_of
from quire.ops.device import CPU, Device
from quire.ops.interface import Ops
from quire.ops.last_tokens import LastTokens
from quire.ops.lora import LoraTable
from quire.ops.memory import empty
from quire.ops.packed_file import StoredLinear
from quire.ops.torch_ops import (
    activations,
    arrays,
    latent,
    recurrent,
    reference,
    sampling,
)
from quire.ops.torch_ops import moe as experts
from quire.ops.torch_ops import paged_attention as attention
from quire.ops.torch_ops.arrays import tensor, torch_dtype
from quire.ops.torch_ops.devices import TorchAccelerator, torch_device
from quire.ops.torch_ops.last_tokens import TorchLastTokens
from quire.ops.torch_ops.lora import TensorTable, lora_add
from quire.ops.weights import Epilogue, LinearWeight


class TorchOps(Ops[Tensor]):
    """All operations in plain torch: the functions of the files of this folder.

    Args:
        compile_backend: fuses the ops of prompts by `torch.compile`; None fuses none.
    """

    provider = "reference"
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
    scale = staticmethod(reference.scale)
    softcap = staticmethod(reference.softcap)
    xielu = staticmethod(reference.xielu)
    activation = staticmethod(activations.activation)
    paged_attention = staticmethod(attention.paged_attention)
    latent_kv_write = staticmethod(latent.latent_kv_write)
    head_linear = staticmethod(latent.head_linear)
    latent_attention = staticmethod(latent.latent_attention)
    causal_conv1d = staticmethod(recurrent.causal_conv1d)
    gated_delta_rule = staticmethod(recurrent.gated_delta_rule)
    mamba2_scan = staticmethod(recurrent.mamba2_scan)
    gated_norm = staticmethod(recurrent.gated_norm)
    lora_add = staticmethod(lora_add)
    route = staticmethod(experts.route)
    moe = staticmethod(experts.moe)
    argmax = staticmethod(sampling.argmax)
    sample = staticmethod(sampling.sample)
    report = staticmethod(sampling.report)

    def __init__(self, device: Device = CPU, compile_backend: str | None = None) -> None:
        there = torch_device(device)
        super().__init__(there)
        self._torch = there.torch
        if torch.float64 in there.lacks:
            vars(self)["route"] = partial(experts.route, wide=torch.float32)
        if compile_backend is not None:
            from quire.ops.torch_ops.compiled import Compiler

            vars(self).update(Compiler(compile_backend).ops())

    def last_tokens(self, slots: int) -> LastTokens | None:
        there = self.device
        return TorchLastTokens(there, slots) if isinstance(there, TorchAccelerator) else None

    @property
    def isa(self) -> str:
        host = self.device.is_host
        kind = torch.backends.cpu.get_cpu_capability() if host else self._torch.type
        return f"torch {kind.lower()}"

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
            raise TypeError(f"{self.provider} ops take no stored weight")
        model_dtype = torch_dtype(dtype)
        given = None if bias is None else tensor(bias).to(self._torch)
        coded = self._coded(parts_of(weight), given, epilogue, experts, model_dtype)
        if coded is not None:
            return coded
        return reference.pack_linear(
            weight, given, epilogue=epilogue, dtype=model_dtype, experts=experts,
            device=self._torch,
        )  # fmt: skip

    def _coded(
        self,
        parts: list[HostArray] | list[QuantizedWeight],
        bias: Tensor | None,
        epilogue: Epilogue,
        experts: int,
        dtype: torch.dtype,
    ) -> LinearWeight | None:
        """Return quantized parts as codes; None if the product takes dense weights."""
        return None

    def array(self, values: HostArray) -> Tensor:
        return tensor(values).to(self._torch)

    def numpy(self, values: Tensor) -> HostArray:
        return arrays.array(values)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Tensor:
        if self.device.is_host:
            return tensor(empty(shape, dtype))
        return torch.empty(shape, dtype=torch_dtype(dtype), device=self._torch)

    def lora_table(
        self, columns: int, parts: Sequence[int], adapters: int, dtype: DType
    ) -> LoraTable:
        return TensorTable(columns, parts, adapters, dtype, self._torch)

    def inference(self) -> AbstractContextManager[object]:
        return torch.inference_mode()

    def use_threads(self, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
