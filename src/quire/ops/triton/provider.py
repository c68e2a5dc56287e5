"""The provider "triton": kernels for GPUs, and plain torch for what has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from quire.core.config import AttentionPackage
from quire.core.dtypes import DType, HostArray
from quire.core.quantized import QuantizedWeight
from quire.ops.device import CPU, Device
from quire.ops.last_tokens import LastTokens
from quire.ops.lora import LoraTable
from quire.ops.torch_ops.devices import TorchAccelerator
from quire.ops.torch_ops.provider import TorchOps
from quire.ops.triton import (
    attention,
    experts,
    flash,
    latent,
    launch,
    linear,
    lora,
    recurrent,
    rows,
    sampling,
)
from quire.ops.triton.last_tokens import TritonLastTokens
from quire.ops.triton.tables import TableCapture
from quire.ops.triton.tuning import chosen
from quire.ops.triton.weights import CODED_ROWS, coded, embedding, vocab_embedding
from quire.ops.weights import Epilogue, LinearWeight

KERNELS: dict[str, Callable[..., Any]] = {
    "linear": linear.linear,
    "logits": linear.logits,
    "head_linear": linear.head_linear,
    "route": experts.route,
    "moe": experts.moe,
    "rms_norm": rows.rms_norm,
    "add_rms_norm": rows.add_rms_norm,
    "layer_norm": rows.layer_norm,
    "add_layer_norm": rows.add_layer_norm,
    "activation": rows.activation,
    "argmax": rows.argmax,
    "sample": sampling.sample,
    "report": sampling.report,
    "rope_kv_write": attention.rope_kv_write,
    "paged_attention": attention.paged_attention,
    "latent_kv_write": latent.latent_kv_write,
    "latent_attention": latent.latent_attention,
    "causal_conv1d": recurrent.causal_conv1d,
    "gated_delta_rule": recurrent.gated_delta_rule,
    "mamba2_scan": recurrent.mamba2_scan,
    "gated_norm": recurrent.gated_norm,
    "lora_add": lora.lora_add,
}
"""Op → what launches its kernel; the other ops are torch's."""


class TritonOps(TorchOps):
    """Ops on an NVIDIA or AMD GPU; on the CPU with Triton's interpreter, which is for tests.

    Args:
        attention_package: computes the attention of prompts; see `flash`.

    Raises:
        ConfigError: the device cannot run the kernels.
    """

    provider = "triton"

    def __init__(
        self, device: Device = CPU, attention_package: AttentionPackage | None = None
    ) -> None:
        launch.check(device)
        super().__init__(device)
        if isinstance(self.device, TorchAccelerator):
            self.capture = TableCapture(self.device)
        chosen(self._torch)  # which logs the file
        vars(self).update(KERNELS, embedding=embedding, vocab_embedding=vocab_embedding)
        if attention_package is not None:
            own = attention.paged_attention
            attend = flash.prompt_attention(attention_package, self._torch, own)
            vars(self).update(paged_attention=attend)
        self.sources = {op: "triton" if op in KERNELS else "torch" for op in self.sources}

    def last_tokens(self, slots: int) -> LastTokens | None:
        there = self.device
        return TritonLastTokens(there, slots) if isinstance(there, TorchAccelerator) else None

    @property
    def isa(self) -> str:
        return "triton interpreter" if self.device.is_host else f"triton {self._torch.type}"

    def _coded(
        self,
        parts: list[HostArray] | list[QuantizedWeight],
        bias: Tensor | None,
        epilogue: Epilogue,
        experts: int,
        dtype: torch.dtype,
    ) -> LinearWeight | None:
        codes = [part for part in parts if isinstance(part, QuantizedWeight)]
        if len(codes) < len(parts):
            return None
        packed = coded(codes, bias, epilogue, experts, dtype, self._torch)
        if packed is None or packed.shape[0] % experts:
            return None
        if packed.form in CODED_ROWS and experts == 1:
            vars(self).update(rows.coded_norms(packed.codes.dtype))
        return packed

    def lora_table(
        self, columns: int, parts: Sequence[int], adapters: int, dtype: DType
    ) -> LoraTable:
        return lora.PointerTable(columns, parts, adapters, dtype, self._torch)
