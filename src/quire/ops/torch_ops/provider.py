"""The provider "reference": every op in plain torch, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from quire.core.dtypes import FLOAT32, DType, HostArray
from quire.core.quantized import Weights
from quire.ops.device import CPU, Device
from quire.ops.interface import Ops
from quire.ops.last_tokens import LastTokens
from quire.ops.lora import LoraTable
from quire.ops.memory import empty
from quire.ops.packed_file import StoredLinear
from quire.ops.torch_ops import arrays, quantized
from quire.ops.torch_ops.activations import ActivationOps
from quire.ops.torch_ops.arrays import tensor, torch_dtype
from quire.ops.torch_ops.devices import TorchAccelerator, torch_device
from quire.ops.torch_ops.last_tokens import TorchLastTokens
from quire.ops.torch_ops.latent import LatentOps
from quire.ops.torch_ops.lora import LoraOps, TensorTable
from quire.ops.torch_ops.moe import MoeOps
from quire.ops.torch_ops.paged_attention import AttentionOps
from quire.ops.torch_ops.quantized import QuantizedWeight
from quire.ops.torch_ops.recurrent import RecurrentOps
from quire.ops.torch_ops.reference import ReferenceOps, pack_linear
from quire.ops.torch_ops.sampling import SamplingOps
from quire.ops.weights import Epilogue, LinearWeight


class TorchOps(
    ReferenceOps, ActivationOps, AttentionOps, LatentOps, RecurrentOps, LoraOps, MoeOps,
    SamplingOps, Ops[Tensor],
):  # fmt: skip
    """All operations in plain torch: the classes of the files of this folder."""

    provider = "reference"

    def __init__(self, device: Device = CPU) -> None:
        there = torch_device(device)
        super().__init__(there)
        self._torch = there.torch

    def last_tokens(self, slots: int) -> LastTokens | None:
        there = self.device
        return TorchLastTokens(there, slots) if isinstance(there, TorchAccelerator) else None

    @property
    def isa(self) -> str:
        kind = torch.backends.cpu.get_cpu_capability() if self.device.is_host else "cuda"
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
        parts: Any = [part.to(self._torch) for part in quantized.parts_of(weight)]
        given = None if bias is None else tensor(bias).to(self._torch)
        model_dtype = torch_dtype(dtype)
        coded = self._coded(parts, given, epilogue, experts, model_dtype)
        if coded is not None:
            return coded
        return pack_linear(
            parts, given, epilogue=epilogue, head=head, dtype=model_dtype, experts=experts
        )

    def _coded(
        self,
        parts: list[Tensor] | list[QuantizedWeight],
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
