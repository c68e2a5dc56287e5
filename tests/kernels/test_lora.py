"""Low-rank adapters for every instruction set, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from quire.ops.native.kernels import native_kernels
from quire.ops.torch_ops import lora
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
from tests.native import LoraTable, lora_add, pool_of

pytestmark = pytest.mark.matrix


def arguments(
    g: torch.Generator,
    dtype: torch.dtype,
    rows: int,
    k: int,
    parts: tuple[int, ...],
    rank: int,
    adapters: int,
) -> tuple[Tensor, Tensor, Tensor, LoraTable]:
    """Each row's adapter, y, x, and adapters of all ranks up to `rank`, some without a part."""
    y, x = draw(g, dtype, rows, sum(parts)), draw(g, dtype, rows, k)
    table = LoraTable(k, parts, adapters, dtype)
    for index in range(adapters):
        for part, width in enumerate(parts):
            some = rank if index == part == 0 else pick(g, 0, rank)
            if some:
                a = draw(g, dtype, some, k, scale=k**-0.5)
                table.set(index, part, a, draw(g, dtype, some, width), 0.5 + index)
    # Runs of one adapter and of none, of all lengths.
    adapter = torch.randint(-1, adapters, (rows,), generator=g).repeat_interleave(3)[:rows]
    return adapter.contiguous(), y, x, table


def formula(
    adapter: Tensor, y: Tensor, x: Tensor, table: Any, parts: tuple[int, ...], rank: int
) -> tuple[Tensor, Tensor]:
    """What `lora_add` makes of y, float64, and how far sums in floats may be from it."""
    exact, size = y.double(), y.double().abs()
    for row, index in enumerate(adapter.tolist()):
        for part, end in enumerate(table.ends):
            held = table.get(index, part) if index >= 0 else None
            if held is None:
                continue
            low, high, wide = held[0].double(), held[1].double(), x[row].double()
            columns = slice(end - parts[part], end)
            exact[row, columns] += held[2] * (low @ wide) @ high
            size[row, columns] += held[2] * (low.abs() @ wide.abs()) @ high.abs()
    return exact, (x.shape[1] + rank + 4) * U * size


@each_isa
@each_dtype
def test_it_is_the_formula(isa: str, dtype: torch.dtype) -> None:
    g, kernels = new_generator(), native_kernels(isa)
    sizes: list[tuple[int, int, tuple[int, ...], int, int]] = [
        (1, 1, (1,), 1, 1), (4, 64, (512,), 16, 2), (9, 33, (515,), 5, 3),
        (5, 40, (48, 24, 24), 9, 3),
    ]  # fmt: skip
    for count in (1, 2, 3, 4):
        parts = tuple(pick(g, 1, 700) for _ in range(count))
        sizes.append((pick(g, 1, 40), pick(g, 1, 300), parts, pick(g, 1, 20), pick(g, 1, 4)))
    for rows, k, parts, rank, adapters in sizes:
        adapter, y, x, table = arguments(g, dtype, rows, k, parts, rank, adapters)
        exact, error = formula(adapter, y, x, table, parts, rank)
        before, plain = y.clone(), lora.lora_add(adapter, y.clone(), x, table)
        assert lora_add(kernels, pool_of(2), adapter, y, x, table) is y
        assert_close(y, exact, error)
        assert_close(plain, exact, error)
        assert_same_bits(y[adapter < 0], before[adapter < 0])


@each_isa
@each_dtype
def test_float32_sums_may_be_added_to(isa: str, dtype: torch.dtype) -> None:
    """As ranks do, before they add up theirs."""
    g, kernels = new_generator(), native_kernels(isa)
    adapter, y, x, table = arguments(g, dtype, 9, 70, (300, 33), 5, 3)
    wide, exact_and_error = y.float().clone(), formula(adapter, y, x, table, (300, 33), 5)
    lora_add(kernels, pool_of(2), adapter, wide, x, table)
    assert_close(wide, *exact_and_error)
    assert_close(lora.lora_add(adapter, y.float().clone(), x, table), *exact_and_error)
    assert_same_bits(wide.to(dtype), lora_add(kernels, pool_of(2), adapter, y, x, table))


@each_dtype
def test_a_rows_bits_are_its_own(dtype: torch.dtype) -> None:
    g, kernels = new_generator(), native_kernels(None)
    adapter, y, x, table = arguments(g, dtype, 23, 130, (500, 100, 100), 7, 3)
    together = lora_add(kernels, pool_of(1), adapter, y.clone(), x, table)
    for threads in (2, 3):
        again = lora_add(kernels, pool_of(threads), adapter, y.clone(), x, table)
        assert_same_bits(again, together)
    for row in range(23):
        one = slice(row, row + 1)
        alone = lora_add(kernels, pool_of(2), adapter[one], y[one].clone(), x[one], table)
        assert_same_bits(alone, together[one])


def test_what_is_cleared_adds_nothing() -> None:
    kernels = native_kernels(None)
    adapter, y, x, table = arguments(new_generator(), torch.float32, 4, 8, (12,), 2, 2)
    table.clear(0)
    table.clear(1)
    assert_same_bits(lora_add(kernels, pool_of(1), adapter, y.clone(), x, table), y)
    assert table.get(0, 0) is None


def test_rows_may_lie_apart() -> None:
    g, kernels = new_generator(), native_kernels(None)
    adapter, y, x, table = arguments(g, torch.float32, 6, 20, (30,), 4, 2)
    wide = torch.randn(6, 50)
    wide[:, 10:40] = y
    lora_add(kernels, pool_of(1), adapter, wide[:, 10:40], torch.cat([x, x], 1)[:, :20], table)
    assert_same_bits(
        wide[:, 10:40].contiguous(), lora_add(kernels, pool_of(1), adapter, y, x, table)
    )


def test_what_does_not_fit() -> None:
    kernels, pool = native_kernels(None), pool_of(1)
    adapter, y, x, table = arguments(new_generator(), torch.float32, 4, 8, (12,), 2, 2)
    before = y.clone()
    assert_same_bits(lora_add(kernels, pool, adapter[:0], y, x, table), before)
    with pytest.raises(ValueError, match=r"x is .* but y is"):
        lora_add(kernels, pool, adapter, y, x[:3], table)
    with pytest.raises(ValueError, match="adapter is"):
        lora_add(kernels, pool, adapter[:3], y, x, table)
    with pytest.raises(ValueError, match="the adapters are bfloat16"):
        lora_add(kernels, pool, adapter, y, x, LoraTable(8, (12,), 2, torch.bfloat16))
    with pytest.raises(ValueError, match=r"\[8\] → \[13\]"):
        lora_add(kernels, pool, adapter, y, x, LoraTable(8, (13,), 2, torch.float32))
    for number in (2, -2):
        with pytest.raises(IndexError, match=f"adapter {number} of row 0 is not in"):
            lora_add(kernels, pool, torch.full((4,), number), y, x, table)
    with pytest.raises(ValueError, match=r"a is .*wanted contiguous"):
        table.set(0, 0, torch.zeros(2, 9), torch.zeros(2, 12), 1.0)
    with pytest.raises(ValueError, match=r"b is .*wanted contiguous"):
        table.set(0, 0, torch.zeros(2, 8), torch.zeros(12, 2).t(), 1.0)
    with pytest.raises(ValueError, match="5 parts"):
        LoraTable(8, (1, 1, 1, 1, 1), 2, torch.float32)
