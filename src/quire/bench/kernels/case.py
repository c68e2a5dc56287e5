"""One measurement of one operation, and arguments that no cache can hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quire.core.dtypes import DType, HostArray, dtype_of

Call = Callable[[int], object]
"""Runs the operation on the arguments of turn i; turns rotate through the copies."""

_MAX_COPIES = 1024
"""More copies of small arguments would measure Python's objects falling out of the caches."""
_DEFAULT_CACHE_BYTES = 64 << 20


@dataclass(frozen=True)
class Variant:
    """What an operation is measured with.

    Attributes:
        rows: tokens of the step; sequences, where attention decodes.
        quantization: of linear weights, as `--quantization` has it; None is unquantized.
        kv_cache_dtype: of keys and values, as `--kv-cache-dtype` has it.
        isa: instruction set of the native kernels.
    """

    rows: int
    dtype: str
    isa: str
    quantization: str | None = None
    kv_cache_dtype: str | None = None

    @property
    def numpy_dtype(self) -> DType:
        return dtype_of(self.dtype)


@dataclass(frozen=True)
class Case:
    """An operation on arguments of one shape.

    Attributes:
        op: the family: "gemm", "norm", "attention" …
        name: which of the family: "qkv", "add_rms_norm", "decode" …
        shape: its sizes but the rows, for people.
        moved_bytes: read and written by one call, each tensor once.
        flops: multiplications and additions of one call; 0 where memory is all that counts.
        rotated_bytes: what one rotation of the arguments touches.
        torch_call: the same by torch, on equal arguments; None if not wanted.
    """

    op: str
    name: str
    shape: str
    variant: Variant
    call: Call
    moved_bytes: int
    flops: int
    rotated_bytes: int
    torch_call: Call | None = None


def cache_bytes() -> int:
    """Size of the largest cache of a CPU of this machine; 64 MiB where Linux does not say."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    found = []
    for file in sizes:
        text = file.read_text().strip()
        if text[:-1].isdigit() and text[-1] in units:
            found.append(int(text[:-1]) * units[text[-1]])
    return max(found, default=_DEFAULT_CACHE_BYTES)


def copies(nbytes: int) -> int:
    """How many copies of arguments of `nbytes` are twice what the caches hold."""
    return max(1, min(_MAX_COPIES, math.ceil(2 * cache_bytes() / nbytes)))


def noise(random: np.random.Generator, shape: Sequence[int], dtype: DType) -> HostArray:
    """Return normal random numbers, which repeat after a million: large arrays take no time."""
    few = random.standard_normal(min(math.prod(shape), 1 << 20), np.float32)
    return np.resize(few.astype(dtype), tuple(shape))
