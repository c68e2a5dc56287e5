"""A case of one op, with arguments that no cache can hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from quire.core.dtypes import DType, HostArray, dtype_of
from quire.system.records import dataclass

Call = Callable[[int], object]
"""Runs the op on the arguments of turn i; turns rotate through the copies."""

_MAX_COPIES = 1024
"""More copies of small arguments would measure cache misses of Python's objects."""
_DEFAULT_CACHE_BYTES = 64 << 20


@dataclass(frozen=True)
class Variant:
    """Rows, dtypes and instruction set of a case.

    Attributes:
        rows: tokens of the step; for decode attention, sequences.
        quantization: a value of `--quantization`, for linear weights; None is unquantized.
        kv_cache_dtype: a value of `--kv-cache-dtype`.
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
    """An op on arguments of one shape.

    Attributes:
        op: the family: "gemm", "norm", "attention" …
        name: the member of the family: "qkv", "add_rms_norm", "decode" …
        shape: its sizes except the rows, as text.
        moved_bytes: bytes that one call reads and writes, each tensor once.
        flops: multiplications and additions of one call; 0 if only memory matters.
        rotated_bytes: bytes that one rotation of the arguments touches.
        torch_call: the same in torch, on equal arguments; None if not requested.
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
    """Return the size of the CPU's largest cache; 64 MiB if Linux does not report it."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    found = []
    for file in sizes:
        text = file.read_text().strip()
        if text[:-1].isdigit() and text[-1] in units:
            found.append(int(text[:-1]) * units[text[-1]])
    return max(found, default=_DEFAULT_CACHE_BYTES)


def copies(nbytes: int, cache: int | None = None) -> int:
    """Return how many copies of `nbytes` make twice the size of a cache, by default the CPU's
    largest."""
    return max(1, min(_MAX_COPIES, math.ceil(2 * (cache or cache_bytes()) / nbytes)))


def noise(random: np.random.Generator, shape: Sequence[int], dtype: DType) -> HostArray:
    """Return normal random numbers that repeat after a million, which is fast for large arrays."""
    few = random.standard_normal(min(math.prod(shape), 1 << 20), np.float32)
    return np.resize(few.astype(dtype), tuple(shape))
