"""Rounding while loading: every code is the nearest that its scale allows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire.ops.quantized import QuantizedWeight
from quire.quant.gguf import GGUF_FORMS
from quire.quant.names import NAMES, GgufRounder

OWN = [name for name, how in NAMES.items() if not isinstance(how.layers, GgufRounder)]
ERROR = {8: 0.012, 4: 0.16}
"""Bits → most root of the mean squared error, of weights with a deviation of 1."""


def weights(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def candidates(w: QuantizedWeight) -> Tensor:
    """[N, G, C]: every value that a weight of the group could have become."""
    if w.codebook is not None:
        values = w.codebook
    elif w.codes.is_floating_point():
        values = torch.arange(256, dtype=torch.uint8).view(w.codes.dtype).float()
        values = values[values.isfinite()]
    elif w.codes.dtype == torch.int8:
        values = torch.arange(-127.0, 128.0)
    else:
        values = torch.arange(float(1 << w.bits))
    grid = values.expand(*w.scale.shape, -1)
    if w.zero is not None:
        grid = grid - w.zero.unsqueeze(2)
    grid = grid * w.scale.unsqueeze(2)
    return grid if w.offset is None else grid + w.offset.unsqueeze(2)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("columns", [256, 200])
def test_the_nearest_code(name: str, columns: int) -> None:
    weight, rounder = weights(20, columns), NAMES[name].layers
    rounded = rounder.quantize(weight)
    form = rounder.form(columns)
    assert str(rounded.codes.dtype) == f"torch.{form.codes}"
    assert (rounded.bits, rounded.group) == (form.bits, form.group)
    grid = candidates(rounded).repeat_interleave(form.group, 1)[:, :columns]
    least = (grid - weight.unsqueeze(2)).abs().amin(2)
    error = (rounded.dequantize() - weight).abs()
    torch.testing.assert_close(error, least, rtol=1e-4, atol=1e-6)
    fraction_bits = {"fp8": 3, "fp8_e5m2": 2, "fp8_block": 3}
    most = 2.0 ** -(1 + fraction_bits[name]) if name in fraction_bits else ERROR[form.bits]
    assert float(error.square().mean().sqrt()) < most


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OWN])
def test_types_of_gguf(name: str) -> None:
    for columns in (256, 96):
        rounded = NAMES[name].layers.quantize(weights(4, columns))
        form = NAMES[name].layers.form(columns)
        assert str(rounded.codes.dtype) == f"torch.{form.codes}"
        assert (rounded.bits, rounded.group) == (form.bits, form.group)
        assert (rounded.zero is not None) == (form.second in ("zero", "middle"))
        assert (rounded.offset is not None) == (form.second == "offset")
        assert (rounded.codebook is not None) == bool(form.codebook)
    assert form in GGUF_FORMS.values()


@pytest.mark.parametrize("name", OWN)
def test_zeros_stay_zeros(name: str) -> None:
    weight = torch.zeros(4, 256)
    assert torch.equal(NAMES[name].layers.quantize(weight).dequantize(), weight)
    weight[1] = 1e-12
    assert bool(NAMES[name].layers.quantize(weight).dequantize().isfinite().all())


@pytest.mark.parametrize("name", OWN)
def test_rows_do_not_depend_on_how_many_there_are(name: str) -> None:
    if name in ("fp8_block", "nvfp4"):
        pytest.skip("rows share a scale")
    weight, rounder = weights(40, 128), NAMES[name].layers
    whole, alone = rounder.quantize(weight).dequantize(), rounder.quantize(weight[7:8])
    assert torch.equal(whole[7:8], alone.dequantize())


def test_blocks_share_a_scale() -> None:
    rounded = NAMES["fp8_block"].layers.quantize(weights(200, 300))
    assert rounded.scale.shape == (200, 3)
    assert torch.equal(rounded.scale[0].expand(128, 3), rounded.scale[:128])
    assert not torch.equal(rounded.scale[0], rounded.scale[128])


@pytest.mark.parametrize("name", OWN)
def test_what_is_not_finite(name: str) -> None:
    weight = weights(4, 256)
    weight[2, 3] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        NAMES[name].layers.quantize(weight)
