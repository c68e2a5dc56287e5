"""What holds for a product with a weight of any kind."""

from collections.abc import Iterable

import torch
from torch import Tensor

from tests.kernels.fused_common import pick
from tests.native import PackedLinear


def assert_rows_are_their_own(
    linear: PackedLinear, x: Tensor, y: Tensor, counts: Iterable[int], generator: torch.Generator
) -> None:
    """`y`, of all rows of `x`, is what each gives alone, and in so many rows together."""
    alone = torch.cat([linear.forward(row) for row in x.split(1)])
    assert torch.equal(alone, y)
    for rows in counts:
        first = pick(generator, 0, len(x) - rows)
        assert torch.equal(linear.forward(x[first : first + rows]), y[first : first + rows])


def assert_writes_its_result_alone(linear: PackedLinear, x: Tensor, columns: int) -> None:
    """Of memory around the product of `x`, of its dtype, nothing is written."""
    rows = len(x)
    room = torch.full((rows * columns + 128,), 7.0, dtype=x.dtype)
    result = room[64:-64].view(rows, columns)
    linear.forward(x, out=result)
    assert bool((room[:64] == 7).all())
    assert bool((room[-64:] == 7).all())
    assert torch.equal(result, linear.forward(x))
