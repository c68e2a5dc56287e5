"""Cosines and sines against Transformers' own, for each scaling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from quire.core.errors import UnsupportedModelError
from quire.core.model_config import RopeConfig
from quire.layers.rotary import rope_table
from quire.models.rope import rope
from quire.ops.torch_ops import reference

HEAD_DIM = 64
MAX_LEN = 300
TRAINED = 128

SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "default", "rope_theta": 1e6},
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    {  # Llama 4's
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED},
    {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": TRAINED,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
        "mscale": 0.7,
        "mscale_all_dim": 0.3,
    },
    {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": TRAINED,
        "attention_factor": 1.25,
    },
]


def table_for(params: dict[str, Any], max_len: int = MAX_LEN) -> torch.Tensor:
    return torch.from_numpy(
        rope_table(rope({"rope_parameters": params}, HEAD_DIM, TRAINED), max_len)
    )


def transformers_table(params: dict[str, Any], max_len: int = MAX_LEN) -> torch.Tensor:
    config = LlamaConfig(
        hidden_size=HEAD_DIM,
        num_attention_heads=1,
        max_position_embeddings=TRAINED,
        rope_parameters={"rope_theta": 10000.0, **params},
    )
    half = HEAD_DIM // 2
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(max_len)[None])
    return torch.cat([cos[0, :, :half], sin[0, :, :half]], dim=1)


@pytest.mark.parametrize("params", SCALINGS, ids=lambda p: p["rope_type"])
def test_table_equals_transformers(params: dict[str, Any]) -> None:
    # An angle of 300 radians is known to 2e-5 in float32, and the frequencies to one rounding.
    torch.testing.assert_close(table_for(params), transformers_table(params), rtol=0.0, atol=6e-5)


def test_dynamic_rows_are_those_of_a_sequence_that_ends_there() -> None:
    params = {"rope_type": "dynamic", "factor": 2.0}
    table = table_for(params)
    for length in (1, TRAINED, TRAINED + 1, 200, MAX_LEN):
        torch.testing.assert_close(
            table[length - 1], transformers_table(params, length)[-1], rtol=0.0, atol=6e-5
        )
    assert torch.equal(table[:TRAINED], table_for({"rope_type": "default"})[:TRAINED])


def test_a_row_does_not_depend_on_the_length_of_the_table() -> None:
    for params in [*SCALINGS, {"rope_type": "dynamic", "factor": 2.0}]:
        assert torch.equal(table_for(params, 150), table_for(params, 300)[:150])


def test_unknown_scaling_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"spiral.*known: default"):
        rope_table(RopeConfig(theta=1e4, rotary_dim=8, scaling="spiral"), 10)


def test_turns_by_position() -> None:
    table = torch.from_numpy(rope_table(RopeConfig(theta=1e4, rotary_dim=8), 10))
    q, k = torch.randn(2, 3, 8), torch.randn(2, 1, 8)
    turned_q, turned_k = reference.rotary(q, k, torch.tensor([0, 4]), table)
    assert torch.equal(turned_q[0], q[0])
    assert torch.equal(turned_k[0], k[0])
    assert not torch.equal(turned_q[1], q[1])
