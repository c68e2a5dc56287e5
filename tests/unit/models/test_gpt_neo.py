"""GPT-Neo's attention_types, which repeat kinds of layers."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.errors import CheckpointError
from quire.models.registry import model_config

CONFIG = {
    "architectures": ["GPTNeoForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 32,
    "num_layers": 4,
    "num_heads": 4,
    "max_position_embeddings": 64,
}


def test_kinds_are_repeated() -> None:
    model = model_config({**CONFIG, "attention_types": [[["global"], 1], [["local"], 3]]})
    assert [model.window(layer) for layer in range(4)] == [None, 256, 256, 256]


@pytest.mark.parametrize(
    "types", [5, "ab", [[["x"], 4]], [[["global"], "4"]], [[["local"], 10**12]], [[[], 10**12]]]
)
def test_wrong_kinds_are_refused(types: Any) -> None:
    """At once, however often they are to be repeated."""
    with pytest.raises(CheckpointError, match="attention_types"):
        model_config({**CONFIG, "attention_types": types})
