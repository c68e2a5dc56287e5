"""What the tests of the small native operations share."""

import os
import secrets

import pytest
import torch
from torch import Tensor

from quire import _native
from quire.ops.native.kernels import native_kernels
from tests.isas import ISAS
from tests.native import FusedKernels

SEED = int(os.environ.get("QUIRE_TEST_SEED", secrets.randbits(32)))
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
U = 2.0**-24
"""Relative error of one float32 rounding."""

# Error of rounding to the dtype: relative, and half the distance between subnormals.
UNIT = {torch.float32: U, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
TINY = {torch.float32: 2.0**-150, torch.bfloat16: 2.0**-134, torch.float16: 2.0**-25}
INTEGER = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
# Around every vector width and unrolled block.
COLS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 257, 1000]

each_isa = pytest.mark.parametrize("isa", ISAS)
each_dtype = pytest.mark.parametrize(
    "dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch.")
)


def new_kernels(isa: str | None = None, threads: int = 1) -> FusedKernels:
    return FusedKernels(native_kernels(isa), _native.Pool(threads))


def new_generator(case: int = 0) -> torch.Generator:
    print(f"QUIRE_TEST_SEED={SEED}")  # pytest shows it when the test fails
    return torch.Generator().manual_seed(SEED + case)


def draw(generator: torch.Generator, dtype: torch.dtype, *shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


def pick(generator: torch.Generator, low: int, high: int) -> int:
    return int(torch.randint(low, high + 1, (), generator=generator))


def choose(generator: torch.Generator, *options: int) -> int:
    return options[pick(generator, 0, len(options) - 1)]


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    """Equal to the bit, the sign of zero included; one NaN is as good as another."""
    assert actual.dtype == expected.dtype
    assert torch.equal(actual.isnan(), expected.isnan())
    kind = INTEGER[actual.dtype]
    assert torch.equal(actual.nan_to_num(0).view(kind), expected.nan_to_num(0).view(kind))


def assert_close(actual: Tensor, exact: Tensor, float_error: Tensor) -> None:
    """Within `float_error` (absolute, float64) and one rounding to actual's dtype.

    A result whose error reaches beyond the dtype's largest number may be infinite as well.
    """
    largest = torch.finfo(actual.dtype).max
    beyond = exact.abs() + float_error + UNIT[actual.dtype] * exact.abs() >= largest
    least = exact.abs() * (1 - UNIT[actual.dtype]) - float_error
    assert bool((actual.abs() >= least.clamp(max=largest))[beyond].all())
    error = (actual.double() - exact).abs()[~beyond]
    rounding = UNIT[actual.dtype] * (exact.abs() + float_error) + TINY[actual.dtype]
    excess = error - (float_error + rounding)[~beyond]
    assert bool((excess <= 0).all()), (float(excess.max()), float(error[excess.argmax()]))


def pools() -> list[FusedKernels]:
    """The most capable kernels on one, two and three threads."""
    return [new_kernels(threads=threads) for threads in (1, 2, 3)]
