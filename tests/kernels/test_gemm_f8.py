"""Weights of 8-bit floats: their codes, and how they are stored. `test_gemm` has their products."""

from pathlib import Path

import pytest
import torch

from quire.ops.native.kernels import native_kernels
from quire.ops.packed_file import read_linears, write_linears
from tests.isas import ISAS
from tests.kernels.fused_common import draw, new_generator
from tests.kernels.products import FLOAT8, WHOLE, draw_float8
from tests.native import PackedLinear, QuantizedWeight, is_float8, pack_float8, pool_of

pytestmark = pytest.mark.matrix


@pytest.mark.parametrize("rows", [1, 37])
@pytest.mark.parametrize("codes", FLOAT8.values(), ids=FLOAT8)
@pytest.mark.parametrize("isa", ISAS)
def test_all_codes(isa: str, codes: torch.dtype, rows: int) -> None:
    """A column of x alone reads a code: exactly, infinity and NaN as such."""
    every = torch.arange(256, dtype=torch.uint8).view(codes)
    weight = QuantizedWeight(every.view(256, 1).contiguous(), 8, torch.ones(256, 1), 1)
    linear = pack_float8(native_kernels(isa), pool_of(2), weight)
    expected = every.float()
    assert torch.equal(linear.unpack()[:, 0].nan_to_num(7), expected.nan_to_num(7))
    y = linear.forward(torch.full((rows, 1), 2.0))
    assert torch.equal(y.isnan(), expected.isnan().expand(rows, 256))
    assert torch.equal(y.nan_to_num(7), (2 * expected).nan_to_num(7).expand(rows, 256))
    ids = torch.tensor([1, 0x7E, 200, 7])
    assert torch.equal(linear.lookup(ids)[:, 0].nan_to_num(7), expected[ids].nan_to_num(7))


@pytest.mark.parametrize("group", [32, WHOLE])
@pytest.mark.parametrize("kind", FLOAT8)
def test_stored_weights_come_back(tmp_path: Path, kind: str, group: int) -> None:
    generator = new_generator()
    weight = draw_float8(generator, kind, 45, 100, group)
    linear = pack_float8(
        native_kernels(), pool_of(2), weight, bias=draw(generator, torch.float32, 45)
    )
    with (tmp_path / "packed").open("w+b") as file:
        sum_written = write_linears(file.fileno(), 0, [linear.stored])
        (stored,), sum_read = read_linears(
            file.fileno(), 0, [linear.stored.shape], "float32", threads=2
        )
    assert sum_written == sum_read
    again = PackedLinear.from_stored(native_kernels(), pool_of(2), stored)
    x = draw(generator, torch.float32, 3, 100)
    assert again.kind == linear.kind
    assert again.group == linear.group
    assert torch.equal(again.forward(x), linear.forward(x))


def test_what_does_not_fit() -> None:
    one = torch.ones(2, 64).to(torch.float8_e4m3fn)
    assert is_float8(QuantizedWeight(one, 8, torch.ones(2, 1), 64))
    assert not is_float8(QuantizedWeight(one, 8, torch.ones(2, 4), 16))
    assert not is_float8(QuantizedWeight(one, 8, torch.ones(2, 1), 64, offset=torch.ones(2, 1)))
    assert not is_float8(QuantizedWeight(one.view(torch.uint8), 8, torch.ones(2, 1), 64))
    kernels = native_kernels()
    for codes, scale, group in (
        (one.float(), torch.ones(2, 1), 0),
        (one, torch.ones(2, 2), 0),
        (one, torch.ones(2, 1), 32),
        (one, torch.ones(2, 4), 16),
        (one[:0], torch.ones(0, 1), 0),
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            PackedLinear.from_float8(kernels, pool_of(1), codes, scale, group=group)
