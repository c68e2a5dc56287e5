"""quant/ggml.py: ggml's own bits where rounding is simple, small errors where it is searched."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from quire.core.dtypes import BFLOAT16, HostArray
from quire.quant.ggml import fitting_type, quantize, quantize_rows

SIMPLE = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"]
SEARCHED = {
    "Q2_K": 0.31,
    "Q3_K": 0.165,
    "Q4_K": 0.078,
    "Q5_K": 0.039,
    "Q6_K": 0.0195,
    "IQ4_NL": 0.084,
    "IQ4_XS": 0.084,
}
"""Type → relative error (root mean square) of normal numbers, a tenth above what is seen."""


def normal(*shape: int) -> HostArray:
    return np.random.default_rng(0).standard_normal(shape, np.float32) * np.float32(0.05)


def awkward() -> HostArray:
    """Rows of zeros, of one number, of one sign, of powers of two, and of very small numbers."""
    x = normal(8, 512)
    x[0] = 0.0
    x[1] = -0.25
    x[2] = np.abs(x[2])
    x[3] = -np.abs(x[3])
    x[4] = np.tile(np.arange(-4, 4), 64)
    x[5, ::2] = 0.0
    x[6] *= 1e-3
    return x


def distance(weight: HostArray, name: str) -> float:
    return float(np.linalg.norm(quantize(weight, name).dequantize() - weight))


@pytest.mark.parametrize("name", SIMPLE)
@pytest.mark.parametrize("weight", [normal(160, 1024), awkward()], ids=["normal", "awkward"])
def test_simple_types_are_ggml_s_to_the_bit(name: str, weight: HostArray) -> None:
    expected = gguf.quantize(weight, gguf.GGMLQuantizationType[name])
    assert np.array_equal(quantize_rows(weight, name), expected)


@pytest.mark.parametrize("name", [*SIMPLE, *SEARCHED])
def test_the_canonical_form_is_what_the_bytes_hold(name: str) -> None:
    weight = awkward()
    raw = quantize_rows(weight, name)
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[name])
    assert quantize(weight, name).dequantize().tobytes() == expected.tobytes()
    assert np.isfinite(expected).all()
    assert not expected[0].any()


@pytest.mark.parametrize("name", SEARCHED)
def test_errors_of_searched_types(name: str) -> None:
    weight = normal(64, 1024)
    assert distance(weight, name) / np.linalg.norm(weight) < SEARCHED[name]


@pytest.mark.parametrize("name", SEARCHED)
def test_a_search_never_loses_against_the_extremes_alone(name: str) -> None:
    """In rows whose outliers would spread the codes too far."""
    weight = normal(16, 512)
    weight[:, ::64] *= 6
    simple = {"Q2_K": None, "Q3_K": None, "Q5_K": "Q5_1", "Q6_K": "Q5_1"}.get(name, "Q4_0")
    if simple is not None:
        assert distance(weight, name) < distance(weight, simple)


def test_rows_that_do_not_divide_go_to_a_type_that_fits() -> None:
    assert fitting_type("Q4_K", 1024) == "Q4_K"
    assert fitting_type("Q4_K", 352) == "Q5_0"
    assert fitting_type("Q6_K", 96) == "Q8_0"
    assert fitting_type("Q2_K", 96) == "IQ4_NL"
    assert fitting_type("Q4_0", 40) == "F16"
    weight = normal(5, 352)
    assert quantize(weight, "Q4_K").bits == 5
    weight = normal(5, 40)
    rounded = quantize(weight, "Q8_0")
    assert rounded.shape == (5, 40)
    assert rounded.scale.shape == (5, 2)
    assert np.abs(rounded.dequantize() - weight).max() < 0.002


def test_bfloat16_is_rounded_as_what_it_stands_for() -> None:
    weight = normal(8, 256).astype(BFLOAT16)
    values = weight.astype(np.float32)
    assert np.array_equal(quantize_rows(weight, "Q4_K"), quantize_rows(values, "Q4_K"))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    weight = normal(2, 256)
    weight[1, 7] = value
    with pytest.raises(ValueError, match="not finite"):
        quantize_rows(weight, "Q4_0")
