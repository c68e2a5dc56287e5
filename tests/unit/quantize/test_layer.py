"""AWQ's folding: a layer computes what it did, and what is rounded comes nearer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from quire.core.config import ModelConfig
from quire.layers.embedding import Embedding
from quire.models.layout import parameters
from quire.models.registry import model_config
from quire.quantize.calibration import Calibration
from quire.quantize.gptq import row_losses
from quire.quantize.layer import fold_scales, linear_names
from quire.quantize.recipe import Recipe
from quire.quantize.targets import Target, target_of

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
}, "olmo2": LLAMA | {"model_type": "olmo2"}}  # fmt: skip


def draw(config: ModelConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    found = {}
    for parameter in parameters(config):
        values = torch.randn(parameter.shape, generator=generator) * 0.2
        if parameter.name.endswith("norm.weight"):
            values += 1.0
            values[5] *= 20.0  # an input that matters
        found[parameter.name] = values.to(dtype).float()
    return found


def started(config: ModelConfig, drawn: dict[str, Tensor]) -> Calibration:
    generator = torch.Generator().manual_seed(4)
    samples = [torch.randint(64, (n,), generator=generator).tolist() for n in (40, 7, 64)]
    embedding = Embedding(
        drawn["embed.weight"],
        drawn["positions.weight"][config.learned_positions_offset :]
        if "positions.weight" in drawn
        else None,
    )
    return Calibration(config, samples, embedding)


def hidden(calibration: Calibration) -> Tensor:
    return torch.cat([batch.hidden for batch in calibration._batches])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hf", MODELS.values(), ids=MODELS.keys())
def test_folding_changes_nothing_but_the_rounding(hf: dict[str, Any], dtype: torch.dtype) -> None:
    config = model_config(hf)
    drawn = draw(config, dtype)
    layer = {name: value for name, value in drawn.items() if name.startswith("layers.0.")}
    target = target_of(Recipe("int4", "awq", group_size=32), torch.float32)
    calibration = started(config, drawn)
    statistics = calibration.watch(0, layer)
    before = sum(losses(config, target, layer, statistics).values())
    calibration.advance(0, layer)

    folded = {name: value.clone() for name, value in layer.items()}
    fold_scales(config, 0, folded, statistics, target, dict.fromkeys(folded, dtype))
    assert any(not torch.equal(folded[name], layer[name]) for name in layer)
    for name, value in folded.items():
        if "norm" in name:
            assert torch.equal(value, value.to(dtype).float()), "it can be stored"
    again = started(config, drawn)
    again.advance(0, folded)
    # A LayerNorm's bias is stored rounded, and nothing makes up for that.
    loose = dtype != torch.float32 and config.norm == "layer_norm"
    off = (hidden(again) - hidden(calibration)).norm() / hidden(calibration).norm()
    assert float(off) < (1e-2 if loose else 1e-5)

    # The statistics have become those of the folded layer, which loses less.
    seen = started(config, drawn).watch(0, folded)
    for name, found in seen.items():
        scale = float(found.hessian.abs().max())
        assert float((found.hessian - statistics[name].hessian).abs().max()) < 1e-2 * scale
    after = sum(losses(config, target, folded, statistics).values())
    assert after < 0.9 * before


def losses(
    config: ModelConfig, target: Target, layer: dict[str, Tensor], statistics: Any
) -> dict[str, float]:
    found = {}
    for name in linear_names(config, 0):
        quantized: Any = target.nearest(layer[name])
        found[name] = float(row_losses(layer[name], quantized, statistics[name].hessian).sum())
    return found


def test_statistics_by_hand() -> None:
    """The first layer's inputs are normed embeddings."""
    config = model_config(LLAMA)
    drawn = draw(config, torch.float32)
    layer = {name: value for name, value in drawn.items() if name.startswith("layers.0.")}
    calibration = started(config, drawn)
    x = hidden(calibration)
    x = x * torch.rsqrt(x.square().mean(1, keepdim=True) + config.norm_eps)
    x = x * layer["layers.0.attn_norm.weight"]
    found = calibration.watch(0, layer)["layers.0.attn.qkv.weight"]
    assert found.tokens == 111
    torch.testing.assert_close(found.hessian, x.t() @ x, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found.magnitude, x.abs().sum(0), rtol=1e-4, atol=1e-3)
