"""The native provider on torch's tensors, for tests that compare it with torch.

Each name is that of Quire's own: here it takes tensors where the other takes arrays, and returns
them. Both share their memory, so that what is written in place shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.core import quantized
from quire.ops import block_copy, lora, providers, rank_group
from quire.ops.interface import OP_NAMES, SAMPLING_OPS, Ops
from quire.ops.metadata import AttentionMetadata
from quire.ops.native import checks as native_checks
from quire.ops.native import fused as native_fused
from quire.ops.native import gemm as native_gemm
from quire.ops.native import quantized as native_quantized
from quire.ops.native import sampling as native_sampling
from quire.ops.native.attention import AttentionKernels
from quire.ops.native.kernels import Kernels, OnPool, Pool
from quire.ops.native.latent import LatentKernels
from quire.ops.native.lora import LoraKernels
from quire.ops.native.moe import MoeKernels
from tests.arrays import array, numpy_dtype, tensor, torch_dtype


@cache
def pool_of(threads: int) -> Pool:
    """Return the pool that tests of this process share; collecting tests starts no threads."""
    return Pool(threads)


@dataclass(frozen=True)
class QuantizedWeight:
    """`core.quantized.QuantizedWeight` with tensors for arrays."""

    codes: Tensor
    bits: int
    scale: Tensor
    group: int
    zero: Tensor | None = None
    offset: Tensor | None = None
    codebook: Tensor | None = None
    permutation: Tensor | None = None
    input_scale: float | None = None
    float_activations: bool = False

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    def dequantize(self) -> Tensor:
        return tensor(arrays(self).dequantize())


def arrays(value: Any) -> Any:
    """Return the value with arrays for tensors, however deep they are."""
    if isinstance(value, Tensor):
        return array(value)
    if isinstance(value, torch.dtype):
        return numpy_dtype(value)
    if isinstance(value, OnTensors):
        return value.target
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(arrays, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(arrays, value))
    if isinstance(value, AttentionMetadata):
        given = {name: arrays(getattr(value, name)) for name in value.__struct_fields__}
        return AttentionMetadata(**given)
    if is_dataclass(value) and not isinstance(value, type):
        given = {f.name: arrays(getattr(value, f.name)) for f in fields(value)}
        if isinstance(value, QuantizedWeight):
            return quantized.QuantizedWeight(**given)
        same = all(given[f.name] is getattr(value, f.name) for f in fields(value))
        return value if same else replace(value, **given)
    return value


def tensors(value: Any) -> Any:
    """Return the value with tensors for arrays."""
    if isinstance(value, np.ndarray) and value.dtype.names is None:
        return tensor(value)
    if isinstance(value, np.dtype):
        return torch_dtype(value)
    if type(value) is tuple:
        return tuple(map(tensors, value))
    if isinstance(value, native_gemm.PackedLinear):
        return PackedLinear.of(value)
    return value


def on_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of arrays as one of tensors."""

    def call(*args: Any, **kwargs: Any) -> Any:
        given = [arrays(arg) for arg in args]
        named = {name: arrays(arg) for name, arg in kwargs.items()}
        result = function(*given, **named)
        own = zip((*args, *kwargs.values()), (*given, *named.values()), strict=True)
        return next((arg for arg, array in own if array is result), tensors(result))

    return call


class OnTensors:
    """A `native` object whose methods take and return tensors."""

    native: Callable[..., Any]
    target: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = {name: arrays(arg) for name, arg in kwargs.items()}
        self.target = type(self).native(*map(arrays, args), **given)

    @classmethod
    def of(cls, target: Any) -> Any:
        made = cls.__new__(cls)
        made.target = target
        return made

    def __getattr__(self, name: str) -> Any:
        if name == "target":
            raise AttributeError(name)
        value = getattr(self.target, name)
        return on_tensors(value) if callable(value) else tensors(value)

    def __repr__(self) -> str:
        return repr(self.target)


class PackedLinear(OnTensors):
    native = native_gemm.PackedLinear
    from_stored = on_tensors(native_gemm.PackedLinear.from_stored)
    from_int8 = on_tensors(native_gemm.PackedLinear.from_int8)
    from_codes = on_tensors(native_gemm.PackedLinear.from_codes)
    from_float8 = on_tensors(native_gemm.PackedLinear.from_float8)


class FusedKernels(OnTensors):
    native = native_fused.FusedKernels

    def argmax(self, logits: Tensor) -> Any:
        return self.target.argmax(array(logits))


class SamplingKernels(OnTensors):
    native = native_sampling.SamplingKernels


class LoraTable(OnTensors):
    native = lora.LoraTable


class RankGroup(OnTensors):
    native = rank_group.RankGroup


class BlockCopier(OnTensors):
    native = block_copy.BlockCopier


def on_pool(made: type[OnPool], name: str) -> Callable[..., Any]:
    """Return an op as a function of kernels, a pool and tensors."""

    def call(kernels: Kernels, pool: Pool, *args: Any, **kwargs: Any) -> Any:
        return on_tensors(getattr(made(kernels, pool), name))(*args, **kwargs)

    return call


paged_attention = on_pool(AttentionKernels, "paged_attention")
latent_attention = on_pool(LatentKernels, "latent_attention")
latent_kv_write = on_pool(LatentKernels, "latent_kv_write")
head_linear = on_pool(LatentKernels, "head_linear")
lora_add = on_pool(LoraKernels, "lora_add")
moe = on_pool(MoeKernels, "moe")
route = on_pool(MoeKernels, "route")
view = on_tensors(native_checks.view)
pack_float8 = on_tensors(native_quantized.pack_float8)
is_float8 = on_tensors(native_quantized.is_float8)


def tensor_ops(ops: Ops) -> Ops[Tensor]:
    """Return the operations as functions of tensors, of whichever provider."""
    if ops.provider == "reference":
        return ops.using(
            pack_linear=lambda weight, *args, **kwargs: ops.pack_linear(
                arrays(weight), *args, **kwargs
            )
        )
    names = set(OP_NAMES) - SAMPLING_OPS
    changed = {name: on_tensors(getattr(ops, name)) for name in (*names, "pack_linear")}
    for name in SAMPLING_OPS:
        op = getattr(ops, name)
        changed[name] = lambda logits, *args, op=op: op(array(logits), *args)
    return ops.using(**changed, array=tensor, numpy=array)


def load_ops(*args: Any, **kwargs: Any) -> Ops[Tensor]:
    return tensor_ops(providers.load_ops(*args, **kwargs))
