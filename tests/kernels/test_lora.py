"""Low-rank adapters for every instruction set, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire import _native
from quire.ops import lora
from quire.ops.native import NativeKernels
from quire.ops.native_lora import lora_add
from tests.kernels.fused_common import (
    U,
    assert_close,
    assert_same_bits,
    draw,
    each_dtype,
    each_isa,
    new_generator,
    pick,
)

POOLS = {threads: _native.Pool(threads) for threads in (1, 2, 3)}


def arguments(
    g: torch.Generator, dtype: torch.dtype, rows: int, k: int, n: int, rank: int, adapters: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    y, x = draw(g, dtype, rows, n), draw(g, dtype, rows, k)
    a = draw(g, dtype, adapters, rank, k, scale=k**-0.5)
    b = draw(g, dtype, adapters, rank, n)
    # Runs of one adapter and of none, of all lengths.
    adapter = torch.randint(-1, adapters, (rows,), generator=g).repeat_interleave(3)[:rows]
    return y, x, a, b, adapter.contiguous()


@each_isa
@each_dtype
def test_it_is_the_formula(isa: str, dtype: torch.dtype) -> None:
    g, kernels = new_generator(), NativeKernels(isa)
    sizes = [(1, 1, 1, 1, 1), (4, 64, 512, 16, 2), (9, 33, 515, 5, 3)]
    sizes += [tuple(pick(g, 1, most) for most in (40, 300, 1200, 20, 4)) for _ in range(4)]
    for rows, k, n, rank, adapters in sizes:
        y, x, a, b, adapter = arguments(g, dtype, rows, k, n, rank, adapters)
        exact, size = y.double(), y.double().abs()
        for row, index in enumerate(adapter.tolist()):
            if index >= 0:
                high, low, wide = b[index].double(), a[index].double(), x[row].double()
                exact[row] += (low @ wide) @ high
                size[row] += (low.abs() @ wide.abs()) @ high.abs()
        before, plain = y.clone(), lora.lora_add(y.clone(), x, a, b, adapter)
        assert lora_add(kernels, POOLS[2], y, x, a, b, adapter) is y
        assert_close(y, exact, (k + rank + 3) * U * size)
        assert_close(plain, exact, (k + rank + 3) * U * size)
        assert_same_bits(y[adapter < 0], before[adapter < 0])


@each_dtype
def test_a_rows_bits_are_its_own(dtype: torch.dtype) -> None:
    g, kernels = new_generator(), NativeKernels(None)
    y, x, a, b, adapter = arguments(g, dtype, 23, 130, 700, 7, 3)
    together = lora_add(kernels, POOLS[1], y.clone(), x, a, b, adapter)
    for threads in (2, 3):
        assert_same_bits(lora_add(kernels, POOLS[threads], y.clone(), x, a, b, adapter), together)
    for row in range(23):
        one = slice(row, row + 1)
        alone = lora_add(kernels, POOLS[2], y[one].clone(), x[one], a, b, adapter[one])
        assert_same_bits(alone, together[one])


def test_rows_may_lie_apart() -> None:
    g, kernels = new_generator(), NativeKernels(None)
    y, x, a, b, adapter = arguments(g, torch.float32, 6, 20, 30, 4, 2)
    wide = torch.randn(6, 50)
    wide[:, 10:40] = y
    lora_add(kernels, POOLS[1], wide[:, 10:40], torch.cat([x, x], 1)[:, :20], a, b, adapter)
    assert_same_bits(wide[:, 10:40].contiguous(), lora_add(kernels, POOLS[1], y, x, a, b, adapter))


def test_what_does_not_fit() -> None:
    kernels, pool = NativeKernels(None), POOLS[1]
    y, x, a, b, adapter = arguments(new_generator(), torch.float32, 4, 8, 12, 2, 2)
    assert lora_add(kernels, pool, y[:0], x[:0], a, b, adapter[:0]).shape == (0, 12)
    with pytest.raises(ValueError, match=r"x is .* but y is"):
        lora_add(kernels, pool, y, x[:3], a, b, adapter)
    with pytest.raises(ValueError, match="adapter is"):
        lora_add(kernels, pool, y, x, a, b, adapter[:3])
    with pytest.raises(ValueError, match="a is"):
        lora_add(kernels, pool, y, x, a.bfloat16(), b, adapter)
    with pytest.raises(ValueError, match="b is"):
        lora_add(kernels, pool, y, x, a, b[:, :1].contiguous(), adapter)
    with pytest.raises(IndexError, match="adapter 2 of 2"):
        lora_add(kernels, pool, y, x, a, b, torch.full((4,), 2))
