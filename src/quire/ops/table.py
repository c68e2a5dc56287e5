"""The table of operations that model code calls, filled by the provider that is chosen."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from quire.core import env
from quire.core.config import OpsProvider
from quire.core.errors import ConfigError
from quire.ops import reference
from quire.ops.paged_attention import paged_attention

if TYPE_CHECKING:
    from quire.ops.native import NativeKernels
    from quire.ops.native_gemm import Pool

logger = logging.getLogger(__name__)

LinearWeight = Any
"""What a provider's `pack_linear` makes, for its own `linear` and `logits` alone."""

_NATIVE_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
_LINEAR_KINDS: dict[torch.dtype, Literal["f32", "bf16"]] = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
}


@dataclass(frozen=True, slots=True)
class OpTable:
    """One callable an operation; shapes and meaning are documented in `ops.reference`.

    Attributes:
        provider: "reference" or "cpu".
        sources: op → who computes it: "reference" or "native avx512" …
        note: why this provider was chosen, where the choice was "auto".
    """

    embedding: Callable[..., Tensor] = reference.embedding
    add: Callable[..., Tensor] = reference.add
    pack_linear: Callable[..., LinearWeight] = reference.pack_linear
    linear: Callable[..., Tensor] = reference.linear
    logits: Callable[..., Tensor] = reference.logits
    rms_norm: Callable[..., Tensor] = reference.rms_norm
    add_rms_norm: Callable[..., tuple[Tensor, Tensor]] = reference.add_rms_norm
    layer_norm: Callable[..., Tensor] = reference.layer_norm
    add_layer_norm: Callable[..., tuple[Tensor, Tensor]] = reference.add_layer_norm
    rotary: Callable[..., tuple[Tensor, Tensor]] = reference.rotary
    write_kv: Callable[..., None] = reference.write_kv
    paged_attention: Callable[..., Tensor] = paged_attention
    silu_mul: Callable[..., Tensor] = reference.silu_mul
    gelu: Callable[..., Tensor] = reference.gelu
    gelu_tanh: Callable[..., Tensor] = reference.gelu_tanh
    relu: Callable[..., Tensor] = reference.relu
    provider: str = "reference"
    sources: dict[str, str] = field(default_factory=dict)
    note: str = ""


OP_NAMES = tuple(f.name for f in fields(OpTable) if f.name not in {"provider", "sources", "note"})


def load_ops(
    provider: OpsProvider = "auto", isa: str | None = None, num_threads: int = 1
) -> OpTable:
    """The operations of `provider`; its native kernels keep `num_threads` threads of their own.

    Args:
        provider: "cpu" takes native kernels where there are some; "reference" is plain torch;
            "auto" is "cpu" where the native module can be imported.
        isa: instruction set of the native kernels; `QUIRE_CPU_ISA`, else the most capable.

    Raises:
        ConfigError: the native module or the instruction set was asked for and is not there.
    """
    plain = OpTable(sources=dict.fromkeys(OP_NAMES, "reference"))
    if provider == "reference":
        return plain
    isa = isa or env.cpu_isa()
    try:
        from quire.ops.native import NativeKernels
        from quire.ops.native_gemm import Pool
    except ImportError as error:
        if provider == "cpu" or isa is not None:
            raise ConfigError(
                f"the native kernels cannot be imported: {error}.",
                fix="Install Quire with its native module, or use --ops reference.",
                param="--ops",
            ) from error
        note = f"reference: the native module cannot be imported ({error})"
        logger.warning("ops: %s", note)
        return replace(plain, note=note)
    try:
        kernels = NativeKernels(isa)
    except ValueError as error:
        raise ConfigError(str(error), fix="Unset or change QUIRE_CPU_ISA.") from error
    return _with_native(plain, kernels, Pool(num_threads))


def _with_native(plain: OpTable, kernels: NativeKernels, pool: Pool) -> OpTable:
    """`plain`, with the native kernels in place of the operations that they cover.

    The choice between native and plain depends on the dtype alone, so that it cannot change
    from one batch to the next.
    """

    from quire.ops.native_gemm import PackedLinear

    def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if _native_fits(x, weight):
            return kernels.rms_norm(x, weight, eps)
        return reference.rms_norm(x, weight, eps)

    def add_rms_norm(
        x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        if _native_fits(x, weight):
            return kernels.add_rms_norm(x, residual, weight, eps)
        return reference.add_rms_norm(x, residual, weight, eps)

    def pack_linear(weight: Tensor, bias: Tensor | None = None) -> LinearWeight:
        kind = _LINEAR_KINDS.get(weight.dtype)
        if kind is None:
            return reference.pack_linear(weight, bias)
        return PackedLinear(kernels, pool, weight, bias, kind=kind)

    def linear(x: Tensor, packed: LinearWeight) -> Tensor:
        if isinstance(packed, PackedLinear):
            return packed.forward(x)
        return reference.linear(x, packed)

    def logits(x: Tensor, packed: LinearWeight) -> Tensor:
        if isinstance(packed, PackedLinear):
            return packed.forward(x, dtype=torch.float32)
        return reference.logits(x, packed)

    covered = ("rms_norm", "add_rms_norm", "pack_linear", "linear", "logits")
    native = dict.fromkeys(covered, f"native {kernels.isa}")
    return replace(
        plain,
        pack_linear=pack_linear,
        linear=linear,
        logits=logits,
        rms_norm=rms_norm,
        add_rms_norm=add_rms_norm,
        provider="cpu",
        sources=plain.sources | native,
        note=f"cpu: native kernels for {kernels.isa}",
    )


def _native_fits(x: Tensor, weight: Tensor) -> bool:
    return x.is_cpu and x.dtype in _NATIVE_DTYPES and weight.dtype == x.dtype
