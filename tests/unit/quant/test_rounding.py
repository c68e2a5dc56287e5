"""Rounding while loading: every code is the nearest that its scale allows."""

from __future__ import annotations

import numpy as np
import pytest

from quire.checkpoint.gguf_forms import GGUF_FORMS
from quire.core.dtypes import BFLOAT16, FLOAT8, dtype_of, finfo
from quire.core.quantized import Floats, QuantizedWeight
from quire.quant.bits import float8
from quire.quant.names import NAMES, GgufRounder

OWN = [name for name, how in NAMES.items() if not isinstance(how.layers, GgufRounder)]
ERROR = {8: 0.012, 4: 0.16}
"""Bits → most root of the mean squared error, of weights with a deviation of 1."""


def weights(rows: int, columns: int) -> Floats:
    return np.random.default_rng(0).standard_normal((rows, columns), np.float32)


def candidates(w: QuantizedWeight) -> Floats:
    """[N, G, C]: every value that a weight of the group could have become."""
    if w.codebook is not None:
        values = w.codebook
    elif w.codes.dtype in FLOAT8:
        values = np.arange(256, dtype=np.uint8).view(w.codes.dtype).astype(np.float32)
        values = values[np.isfinite(values)]
    elif w.codes.dtype == np.int8:
        values = np.arange(-127, 128, dtype=np.float32)
    else:
        values = np.arange(1 << w.bits, dtype=np.float32)
    grid = np.broadcast_to(values, (*w.scale.shape, len(values)))
    if w.zero is not None:
        grid = grid - w.zero[:, :, np.newaxis]
    grid = grid * w.scale[:, :, np.newaxis]
    return grid if w.offset is None else grid + w.offset[:, :, np.newaxis]


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("columns", [256, 200])
def test_the_nearest_code(name: str, columns: int) -> None:
    weight, rounder = weights(20, columns), NAMES[name].layers
    before = weight.copy()
    rounded = rounder.quantize(weight)
    assert np.array_equal(weight, before), "the weight itself stays"
    form = rounder.form(columns)
    assert str(rounded.codes.dtype) == form.codes
    assert (rounded.bits, rounded.group) == (form.bits, form.group)
    assert rounded.float_activations == form.float_activations
    grid = np.repeat(candidates(rounded), form.group, axis=1)[:, :columns]
    least = np.abs(grid - weight[:, :, np.newaxis]).min(2)
    error = np.abs(rounded.dequantize() - weight)
    np.testing.assert_allclose(error, least, rtol=1e-4, atol=1e-6)
    fraction_bits = {"fp8": 3, "fp8_w8a8": 3, "fp8_e5m2": 2, "fp8_block": 3}
    most = 2.0 ** -(1 + fraction_bits[name]) if name in fraction_bits else ERROR[form.bits]
    assert np.sqrt(np.square(error).mean()) < most


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OWN])
def test_types_of_gguf(name: str) -> None:
    for columns in (256, 96):
        rounded = NAMES[name].layers.quantize(weights(4, columns))
        form = NAMES[name].layers.form(columns)
        assert str(rounded.codes.dtype) == form.codes
        assert (rounded.bits, rounded.group) == (form.bits, form.group)
        assert (rounded.zero is not None) == (form.second in ("zero", "middle"))
        assert (rounded.offset is not None) == (form.second == "offset")
        assert (rounded.codebook is not None) == bool(form.codebook)
    assert form in GGUF_FORMS.values()


@pytest.mark.parametrize("name", OWN)
def test_zeros_stay_zeros(name: str) -> None:
    weight = np.zeros((4, 256), np.float32)
    assert not NAMES[name].layers.quantize(weight).dequantize().any()
    weight[1] = 1e-12
    assert np.isfinite(NAMES[name].layers.quantize(weight).dequantize()).all()


@pytest.mark.parametrize("name", OWN)
def test_rows_do_not_depend_on_how_many_there_are(name: str) -> None:
    if name in ("fp8_block", "nvfp4"):
        pytest.skip("rows share a scale")
    weight, rounder = weights(40, 128), NAMES[name].layers
    whole, alone = rounder.quantize(weight).dequantize(), rounder.quantize(weight[7:8])
    assert np.array_equal(whole[7:8], alone.dequantize())


@pytest.mark.parametrize("name", OWN)
def test_chunks_of_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 weights, a few rows at a time, round as they do in float32 at once."""
    weight = weights(300, 96).astype(BFLOAT16)
    at_once = NAMES[name].layers.quantize(weight.astype(np.float32)).dequantize()
    monkeypatch.setattr("quire.quant.rounding._CHUNK", 96 * 7)
    assert np.array_equal(NAMES[name].layers.quantize(weight).dequantize(), at_once)


def test_blocks_share_a_scale() -> None:
    rounded = NAMES["fp8_block"].layers.quantize(weights(200, 300))
    assert rounded.scale.shape == (200, 3)
    assert (rounded.scale[:128] == rounded.scale[0]).all()
    assert not np.array_equal(rounded.scale[0], rounded.scale[128])


@pytest.mark.parametrize("name", OWN)
def test_what_is_not_finite(name: str) -> None:
    weight = weights(4, 256)
    weight[2, 3] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        NAMES[name].layers.quantize(weight)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_8_bit_floats_round_as_those_of_ml_dtypes(name: str) -> None:
    """At every float, at every middle between two, and at the numbers next to it."""
    most = float(finfo(name).max)
    every = np.arange(256, dtype=np.uint8).view(name).astype(np.float64)
    every = np.sort(every[np.isfinite(every)])
    middles = ((every[1:] + every[:-1]) / 2).astype(np.float32)
    sides = [np.nextafter(middles, np.float32(side)) for side in (-np.inf, np.inf)]
    tiny = np.float32([0.0, -0.0, 1e-45, -1e-40, 2**-10, 2**-17])
    drawn = np.clip(weights(64, 64) * np.exp(9 * weights(64, 1)), -most, most).ravel()
    x = np.concatenate([every.astype(np.float32), middles, *sides, tiny, drawn])
    expected = x.astype(dtype_of(name)).view(np.uint8)
    assert np.array_equal(float8(x, name).view(np.uint8), expected)
