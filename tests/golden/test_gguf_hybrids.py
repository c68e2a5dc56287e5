"""GGUF files of models with recurrent layers: what Transformers computes of the models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.checkpoint.gguf_names import NAMES
from quire.checkpoint.source import resolve
from quire.models.weights.checkpoint import open_weights
from tests.golden.gguf_hybrids import ARCHS, write_gguf_hybrid
from tests.golden.test_recurrent import LOGIT_TOLERANCE, Engine, Golden
from tests.golden.tiny_models import RECURRENT_MODELS

UNSAID: dict[str, dict[str, Any]] = {
    "lfm2": {},
    "lfm2-moe": {},
    "mamba2": {"time_step_limit": [0.0, 1e30]},
    "granite4-hybrid": {},
    "granite4-experts": {},
    "falcon-h1": {"mamba_norm_before_gate": False},
    "nemotron-h": {"time_step_min": 1e-30},
    "qwen3_5": {},
    "qwen3_5-moe": {},
    "qwen3-next": {"mlp_only_layers": []},
    "kimi-linear": {},
}
"""Fields that llama.cpp does not read, as it computes."""


def test_every_hybrid_architecture_is_tested() -> None:
    types = {RECURRENT_MODELS[name].model_type for name in UNSAID}
    assert types == set(ARCHS) == {n.model_type for n in NAMES.values() if n.recurrent}


@pytest.mark.parametrize(
    ("name", "old"),
    [*((name, False) for name in UNSAID), ("qwen3-next", True), ("kimi-linear", True)],
)
def test_equals_transformers(name: str, old: bool, tmp_path: Path) -> None:
    golden = Golden(name, tmp_path, **UNSAID[name])
    golden.folder = write_gguf_hybrid(tmp_path, tmp_path / "model.gguf", old=old)
    engine = Engine(golden, block_size=8, max_num_batched_tokens=19, max_model_len=128)
    logprobs: list[float] = []
    assert engine.answer([golden.prompt], logprobs) == [golden.output]
    assert logprobs == pytest.approx(golden.logprobs, rel=0, abs=LOGIT_TOLERANCE)


@pytest.mark.parametrize("name", ["granite4-hybrid", "qwen3_5", "qwen3-next"])
def test_codes_compute_what_their_values_do(name: str, tmp_path: Path) -> None:
    """Rows and columns change places, gate and up are apart, and all are quantized."""
    changes = {"hidden_size": 64, "linear_value_head_dim": 32, "shared_intermediate_size": 96}
    golden = Golden(name, tmp_path, **UNSAID[name], **changes)
    path = write_gguf_hybrid(tmp_path, tmp_path / "model.gguf", "Q8_0")
    weights, found = open_weights(resolve(str(path))), 0
    for each in weights.tensors:
        weight = weights.quantized(each)
        if weight is not None:
            found += 1
            values = weights.read(each)
            assert (weight.dequantize() == values.reshape(weight.shape)).all(), each
    assert found > 5
    golden.folder = path
    Engine(golden, max_model_len=128).answer([golden.prompt])
