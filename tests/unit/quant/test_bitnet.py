"""Ternary weights, packed as Transformers packs them: a quarter of the rows at each two bits."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.errors import UnsupportedModelError
from quire.quant.registry import method

LAYER = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize(("linear", "scale"), [("autobitlinear", 0.5), ("bitlinear", 2.0)])
def test_codes_and_scale(linear: str, scale: float) -> None:
    ternary = np.random.default_rng(0).integers(-1, 2, (12, 20))
    quarters = (ternary + 1).astype(np.uint8).reshape(4, 3, 20)
    found = method({"quant_method": "bitnet", "linear_class": linear})
    scheme = found.scheme(LAYER)
    assert found.scheme("lm_head") is None
    assert scheme.stored(12, 20)["weight"].shapes == ((3, 20),)
    tensors = {
        "weight": np.bitwise_or.reduce([part << 2 * i for i, part in enumerate(quarters)]),
        "weight_scale": np.array([scale], np.float32),
    }
    weight = scheme.read(tensors, 12, 20)
    assert np.array_equal(weight.dequantize(), 0.5 * ternary)
    assert weight.bits == scheme.form(20).bits == 2
    tensors["weight"][0, 0] = 0xFF
    with pytest.raises(ValueError, match="a code is 3"):
        scheme.read(tensors, 12, 20)


def test_what_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="quantization_mode"):
        method({"quant_method": "bitnet", "quantization_mode": "online"})
    found = method({"quant_method": "bitnet"}).scheme(LAYER)
    assert found is not None
    with pytest.raises(ValueError, match="10 rows"):
        found.stored(10, 20)
