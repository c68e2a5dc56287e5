"""Forms of every name: dummy weights have them, and memory is counted as they are packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire.core.dtypes import BFLOAT16, HostArray
from quire.core.quantized import QuantizedWeight
from quire.models.decoder import Decoder
from quire.models.forms import rounded_forms
from quire.models.layout import parameters
from quire.models.memory import loaded_bytes
from quire.models.registry import model_config
from quire.models.weights.dummy import RandomParameters
from quire.ops.providers import load_ops
from quire.quant.names import NAMES
from tests.unit.executor.configs import config

SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 500,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tied", [False, True])
def test_dummy_weights_and_their_bytes(name: str, tied: bool) -> None:
    model = model_config(SHAPE | {"tie_word_embeddings": tied})
    forms = rounded_forms(model, NAMES[name])
    source = RandomParameters(model, BFLOAT16, 0, forms=forms)
    for parameter in parameters(model):
        wanted = forms.get(parameter.name)
        parts = source.parts(parameter.name)
        assert tuple(source.tensor(parameter.name).shape) == parameter.shape
        if wanted is None:
            assert all(isinstance(part, np.ndarray) for part in parts)
            continue
        for part, form in zip(parts, wanted, strict=True):
            assert isinstance(part, QuantizedWeight)
            assert str(part.codes.dtype) == form.codes
            assert (part.bits, part.group) == (form.bits, form.group)
            if part.codes.dtype == np.uint8:
                assert int(part.codes.max()) < 1 << form.bits
            dense = part.dequantize()
            assert float(dense.std()) == pytest.approx(0.02, rel=0.1)
            assert abs(float(dense.mean())) < 0.005
    decoder = Decoder(model, source, 32, load_ops("cpu"))
    linear = sum(weight.nbytes for weight in decoder.linear_weights.values())
    others = sum(p.numel for p in parameters(model) if p.name not in decoder.linear_weights)
    counted = loaded_bytes(config(model=model, dtype="bfloat16", weight_forms=forms, ops="cpu"))
    padding = 0
    for weight in decoder.linear_weights.values():
        if weight.kind == "bf16":  # dense ones are counted without the rows that fill a block
            rows, columns = weight.shape
            padding += weight.nbytes - 2 * rows * columns
    assert linear - padding + 2 * others == counted


def test_dummy_weights_are_the_same_for_a_seed() -> None:
    model = model_config(SHAPE)
    forms = rounded_forms(model, NAMES["q4_k"])

    def codes(seed: int, name: str) -> HostArray:
        parts = RandomParameters(model, BFLOAT16, seed, forms=forms).parts(name)
        assert isinstance(parts[0], QuantizedWeight)
        return parts[0].codes

    one = codes(1, "layers.0.mlp.down.weight")
    assert np.array_equal(one, codes(1, "layers.0.mlp.down.weight"))
    assert not np.array_equal(one, codes(2, "layers.0.mlp.down.weight"))
    assert not np.array_equal(one, codes(1, "layers.1.mlp.down.weight"))
