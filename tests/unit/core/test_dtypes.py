"""Names of dtypes, and conversions between the formats of checkpoints."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.dtypes import converted, dtype_of, is_float
from tests.arrays import tensor, torch_dtype

FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")


@pytest.mark.parametrize("name", [*FLOATS, "int8", "uint8", "int64"])
def test_a_dtype_has_the_name_that_it_is_known_by(name: str) -> None:
    assert str(dtype_of(name)) == name
    assert is_float(dtype_of(name)) == (name in FLOATS)


@pytest.mark.parametrize("to", FLOATS[:3])
@pytest.mark.parametrize("source", FLOATS)
def test_conversions_round_as_torch_does(source: str, to: str) -> None:
    bits = np.random.default_rng(0).integers(0, 256, 1 << 16, dtype=np.uint8)
    values = bits.view(dtype_of(source))
    found = converted(values, dtype_of(to))
    assert found.dtype == to
    wanted = tensor(values).to(torch_dtype(dtype_of(to)))
    with np.errstate(invalid="ignore"):  # signalling NaN become quiet ones
        wide = found.astype(np.float64)
    np.testing.assert_array_equal(wide, wanted.double().numpy(), strict=True)


def test_what_has_the_dtype_is_not_copied() -> None:
    values = np.zeros(3, dtype_of("bfloat16"))
    assert converted(values, values.dtype) is values
