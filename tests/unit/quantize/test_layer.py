"""AWQ's folding: a layer computes what it did, and what is rounded comes nearer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire.core.dtypes import BFLOAT16, FLOAT32, DType, Floats, converted
from quire.core.model_config import ModelConfig
from quire.layers.embedding import Embedding
from quire.models.layout import parameters
from quire.models.registry import model_config
from quire.ops.providers import load_ops
from quire.quantize.calibration import Calibration, InputStatistics
from quire.quantize.gptq import row_losses
from quire.quantize.layer import fold_scales, linear_names
from quire.quantize.recipe import Recipe
from quire.quantize.targets import Target, target_of

OPS = load_ops()
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
OPT: dict[str, Any] = {
    "model_type": "opt",
    "vocab_size": 64,
    "hidden_size": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "word_embed_proj_dim": 64,
}
BIASED = LLAMA | {"attention_bias": True, "mlp_bias": True}
MODELS = {"llama": LLAMA, "llama with biases": BIASED, "opt": OPT, "gelu": OPT | {
    "activation_function": "gelu"
}, "olmo2": LLAMA | {"model_type": "olmo2"},
    "parallel": LLAMA | {"model_type": "cohere2"},
    "experts": LLAMA | {"model_type": "qwen2_moe", "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2},
    "experts on 96": LLAMA | {"model_type": "mixtral", "num_local_experts": 4},
}  # fmt: skip


def draw(config: ModelConfig, dtype: DType) -> dict[str, Floats]:
    random = np.random.default_rng(3)
    found = {}
    for parameter in parameters(config):
        values = random.standard_normal(parameter.shape, np.float32) * np.float32(0.2)
        if parameter.name.endswith("norm.weight"):
            values += 1.0
            values[5] *= 20.0  # an input that matters
        found[parameter.name] = converted(converted(values, dtype), FLOAT32)
    return found


def started(config: ModelConfig, drawn: dict[str, Floats]) -> Calibration:
    random = np.random.default_rng(4)
    samples = [random.integers(64, size=n).tolist() for n in (24, 7, 33)]
    embedding = Embedding(
        drawn["embed.weight"],
        drawn["positions.weight"][config.learned_positions_offset :]
        if "positions.weight" in drawn
        else None,
    )
    return Calibration(config, samples, embedding, OPS)


def hidden(calibration: Calibration) -> Floats:
    return np.concatenate([OPS.numpy(batch.hidden) for batch in calibration._batches])


CASES = [
    pytest.param(hf, dtype, id=f"{name}-{dtype}", marks=pytest.mark.slow if model % 2 == i else ())
    for model, (name, hf) in enumerate(MODELS.items())
    for i, dtype in enumerate((FLOAT32, BFLOAT16))
]
"""Each model once, in one of the types; OPT's LayerNorm in bfloat16."""


@pytest.mark.parametrize(("hf", "dtype"), CASES)
def test_folding_changes_nothing_but_the_rounding(hf: dict[str, Any], dtype: DType) -> None:
    config = model_config(hf)
    drawn = draw(config, dtype)
    layer = {name: value for name, value in drawn.items() if name.startswith("layers.0.")}
    target = target_of(Recipe("int4", "awq", group_size=32), FLOAT32)
    calibration = started(config, drawn)
    statistics = calibration.watch(0, layer)
    before = sum(losses(config, target, layer, statistics).values())
    calibration.advance(0, layer)

    folded = {name: value.copy() for name, value in layer.items()}
    fold_scales(config, 0, folded, statistics, target, dict.fromkeys(folded, dtype))
    assert any(not np.array_equal(folded[name], layer[name]) for name in layer)
    for name, value in folded.items():
        if "norm" in name:
            assert np.array_equal(value, converted(converted(value, dtype), FLOAT32)), (
                "it can be stored"
            )
    again = started(config, drawn)
    again.advance(0, folded)
    # A LayerNorm's bias is stored rounded, and nothing makes up for that.
    loose = dtype != FLOAT32 and config.norm == "layer_norm"
    off = np.linalg.norm(hidden(again) - hidden(calibration)) / np.linalg.norm(hidden(calibration))
    assert off < (1e-2 if loose else 1e-5)

    # The statistics have become those of the folded layer, which loses less.
    seen = started(config, drawn).watch(0, folded)
    pairs = [pair for name in seen for pair in zip(seen[name], statistics[name], strict=True)]
    for found, folded_one in pairs:
        scale = np.abs(found.hessian).max()
        assert np.abs(found.hessian - folded_one.hessian).max() < 1e-2 * scale
    after = sum(losses(config, target, folded, statistics).values())
    assert after < 0.9 * before


def losses(
    config: ModelConfig, target: Target, layer: dict[str, Floats], statistics: Any
) -> dict[str, float]:
    found = {}
    for name in linear_names(config, 0):
        weights = np.split(layer[name], len(statistics[name]))
        found[name] = sum(
            float(row_losses(weight, target.nearest(weight), seen.hessian).sum())  # type: ignore[arg-type]
            for weight, seen in zip(weights, statistics[name], strict=True)
        )
    return found


def test_statistics_by_hand() -> None:
    """The first layer's inputs are normed embeddings."""
    config = model_config(LLAMA)
    drawn = draw(config, FLOAT32)
    layer = {name: value for name, value in drawn.items() if name.startswith("layers.0.")}
    calibration = started(config, drawn)
    x = hidden(calibration)
    x = x / np.sqrt(np.square(x).mean(1, keepdims=True) + config.norm_eps)
    x = x * layer["layers.0.attn_norm.weight"]
    found = calibration.watch(0, layer)["layers.0.attn.qkv.weight"][0]
    assert found.tokens == 64
    np.testing.assert_allclose(found.hessian, x.T @ x, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(found.magnitude, np.abs(x).sum(0), rtol=1e-4, atol=1e-3)


def test_second_moments_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the blocks right of the diagonal are products; the others are their mirror images."""
    monkeypatch.setattr("quire.quantize.calibration._ROWS", 32)
    x = np.random.default_rng(5).standard_normal((50, 70), np.float32)
    found = InputStatistics.of_width(70)
    for part in (x[:20], x[20:]):
        found.add(part)
    exact = x.astype(np.float64).T @ x
    # Sums of 50 products of about 1, in float32.
    np.testing.assert_allclose(found.hessian, exact, rtol=0, atol=50 * 2.0**-24 * exact.max())


def test_the_cpus_kernels_compute_the_layers() -> None:
    config = model_config(LLAMA)
    drawn = draw(config, FLOAT32)
    started(config, drawn).advance(0, {n: v for n, v in drawn.items() if n.startswith("layers.0.")})
    assert OPS.provider == "cpu"
