"""The table of operations that model code calls, filled by the provider that is chosen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from quire.core.config import OpsProvider
from quire.core.errors import ConfigError
from quire.core.messages import TokenLogprobs
from quire.ops import reference
from quire.ops.device import CPU, Device
from quire.ops.filters import FloatRow
from quire.ops.lora import lora_add
from quire.ops.moe import moe
from quire.ops.paged_attention import paged_attention
from quire.ops.quantized import Weights, parts_of
from quire.ops.sampling import TokenIds, argmax, logprobs, sample
from quire.system import env

if TYPE_CHECKING:
    from quire import _native
    from quire.ops.packed_file import StoredLinear
    from quire.ops.rank_group import RankGroup

logger = logging.getLogger(__name__)

LinearWeight = Any
"""What a provider's `pack_linear` makes, for its own `linear` and `logits` alone."""


@dataclass(frozen=True, slots=True)
class OpTable:
    """One callable an operation; shapes and meaning are documented in `ops.reference` and
    `ops.sampling`.

    Attributes:
        provider: "reference" or "cpu".
        sources: op → who computes it: "reference" or "native avx512" …
        note: why this provider was chosen, where the choice was "auto".
        ranks: processes among which layers are dealt out: over which `all_reduce` sums.
        new_plan: makes an empty plan that these ops can be recorded into (see `ops.plan`); None
            where nothing is native.
        device: where they compute: of all their tensors, unless the op says "on the host".
    """

    embedding: Callable[..., Tensor] = reference.embedding
    add: Callable[..., Tensor] = reference.add
    pack_linear: Callable[..., LinearWeight] = reference.pack_linear
    linear: Callable[..., Tensor] = reference.linear
    logits: Callable[..., Tensor] = reference.logits
    all_reduce: Callable[..., Tensor] = reference.all_reduce
    all_gather: Callable[..., Tensor] = reference.all_gather
    vocab_embedding: Callable[..., Tensor] = reference.vocab_embedding
    rms_norm: Callable[..., Tensor] = reference.rms_norm
    add_rms_norm: Callable[..., tuple[Tensor, Tensor]] = reference.add_rms_norm
    layer_norm: Callable[..., Tensor] = reference.layer_norm
    add_layer_norm: Callable[..., tuple[Tensor, Tensor]] = reference.add_layer_norm
    rope_kv_write: Callable[..., Tensor] = reference.rope_kv_write
    paged_attention: Callable[..., Tensor] = paged_attention
    silu_mul: Callable[..., Tensor] = reference.silu_mul
    gelu_tanh_mul: Callable[..., Tensor] = reference.gelu_tanh_mul
    gelu_mul: Callable[..., Tensor] = reference.gelu_mul
    scale: Callable[..., Tensor] = reference.scale
    softcap: Callable[..., Tensor] = reference.softcap
    gelu: Callable[..., Tensor] = reference.gelu
    gelu_tanh: Callable[..., Tensor] = reference.gelu_tanh
    relu: Callable[..., Tensor] = reference.relu
    lora_add: Callable[..., Tensor] = lora_add
    moe: Callable[..., Tensor] = moe
    argmax: Callable[..., tuple[TokenIds, FloatRow]] = argmax
    sample: Callable[..., list[int]] = sample
    logprobs: Callable[..., list[TokenLogprobs]] = logprobs
    provider: str = "reference"
    sources: dict[str, str] = field(default_factory=dict)
    note: str = ""
    ranks: int = 1
    new_plan: Callable[[], _native.Plan] | None = None
    device: Device = CPU


_NOT_OPS = {"provider", "sources", "note", "ranks", "new_plan", "device"}
OP_NAMES = tuple(f.name for f in fields(OpTable) if f.name not in _NOT_OPS)


def load_ops(
    provider: OpsProvider = "auto",
    isa: str | None = None,
    num_threads: int = 1,
    quantization: str | None = None,
    device: Device = CPU,
    group: RankGroup | None = None,
) -> OpTable:
    """The operations of `provider`; its native kernels keep `num_threads` threads of their own.

    Args:
        provider: "cpu" takes native kernels where there are some; "reference" is plain torch;
            "auto" is "cpu" where the native module can be imported.
        quantization: how `pack_linear` quantizes (`core.quantization`); native kernels alone can.
        isa: instruction set of the native kernels; `QUIRE_CPU_ISA`, else the most capable.
        device: where; native kernels run on the CPU alone.
        group: the processes that the model is dealt out among; for native kernels alone.

    Raises:
        ConfigError: the native module or the instruction set was asked for and is not there.
    """
    plain = OpTable(sources=dict.fromkeys(OP_NAMES, "reference"))
    if not device.is_host:
        plain = replace(plain, pack_linear=partial(_packed_on, device), device=device)
    if provider == "reference" or not device.is_host:
        if quantization is not None:
            raise ConfigError("the reference ops have no quantized products.", param="quantization")
        if group is not None:
            raise ConfigError("the reference ops compute in one process.", param="--ops")
        return plain
    isa = isa or env.cpu_isa()
    try:
        from quire.ops.cpu import cpu_ops
    except ImportError as error:
        if provider == "cpu" or isa or quantization or group:
            raise ConfigError(
                f"the native kernels cannot be imported: {error}.",
                fix="Install Quire with its native module, or use --ops reference.",
                param="--ops",
            ) from error
        note = f"reference: the native module cannot be imported ({error})"
        logger.warning("ops: %s", note)
        return replace(plain, note=note)
    try:
        return cpu_ops(isa, num_threads, quantization, group)
    except ValueError as error:
        raise ConfigError(str(error), fix="Unset or change QUIRE_CPU_ISA.") from error


def _packed_on(device: Device, weight: Weights, *given: Any, **named: Any) -> LinearWeight:
    """`reference.pack_linear` of a weight on the host, made on the device; the bias is there."""
    parts: Any = [part.to(device.torch) for part in parts_of(weight)]
    return reference.pack_linear(parts, *given, **named)


def stored_linears(weights: Mapping[str, LinearWeight]) -> dict[str, StoredLinear]:
    """Name → what can be kept in a file; empty where a provider's weights cannot all be."""
    stored = {name: weight.stored for name, weight in weights.items() if hasattr(weight, "stored")}
    return stored if len(stored) == len(weights) else {}
