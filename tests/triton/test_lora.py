"""Low-rank adapters: against float64, and a row's bits are its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire.ops.triton import lora
from quire.ops.triton.lora import PointerTable
from quire.ops.triton.provider import TritonOps
from tests.arrays import array, numpy_dtype
from tests.kernels.fused_common import assert_close, draw, new_generator
from tests.kernels.test_lora import formula

PARTS = (40, 33, 17, 21)


def arguments(
    g: torch.Generator, dtype: torch.dtype, rows: int, k: int
) -> tuple[Tensor, Tensor, Tensor, PointerTable]:
    """Each row's adapter, y, x, and three adapters of ranks 1 to 20 for some parts."""
    y, x = draw(g, dtype, rows, sum(PARTS)), draw(g, dtype, rows, k)
    table = TritonOps().lora_table(k, PARTS, 3, numpy_dtype(dtype))
    assert isinstance(table, PointerTable)
    for index, part, rank in (
        (0, 0, 1),
        (0, 1, 7),
        (1, 1, 20),
        (2, 0, 4),
        (2, 1, 4),
        (2, 2, 3),
        (1, 3, 5),
    ):
        a = draw(g, dtype, rank, k, scale=k**-0.5)
        table.set(index, part, array(a), array(draw(g, dtype, rank, PARTS[part])), 0.5 + index)
    adapter = torch.randint(-1, 3, (rows,), generator=g)
    return adapter, y, x, table


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float16], ids=str
)
def test_it_is_the_formula(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "SEGMENT", 64)
    adapter, y, x, table = arguments(new_generator(), dtype, 19, 90)
    exact, bound = formula(adapter, y, x, table, PARTS, rank=20)
    before = y.clone()
    assert lora.lora_add(adapter, y, x, table) is y
    assert_close(y, exact, bound)
    assert torch.equal(y[adapter < 0], before[adapter < 0])
    for row in (0, 17):
        one = slice(row, row + 1)
        alone = lora.lora_add(adapter[one], before[one].clone(), x[one], table)
        assert torch.equal(alone[0], y[row])
    table.clear(2)
    cleared = lora.lora_add(adapter, before.clone(), x, table)
    assert torch.equal(cleared[adapter == 2], before[adapter == 2])
    assert torch.equal(cleared[adapter != 2], y[adapter != 2])
    assert lora.lora_add(adapter[:0], y, x, table) is y
