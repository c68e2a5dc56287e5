"""A few of `make truth`'s configurations, and that it sees a wrong one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from quire.core.model_config import ModelConfig, RopeConfig
from quire.models.architectures import llama
from quire.models.registry import model_config
from tests.truth.choices import ARCHITECTURES, Case, draw
from tests.truth.compare import Outcome, run
from tests.truth.routing import first_near_tie
from tests.truth.unread import unread

CASES = range(1, len(ARCHITECTURES), 4)
"""Of every fourth architecture; `make truth` has the others."""

pytestmark = pytest.mark.filterwarnings("ignore")


def test_quire_computes_what_transformers_does_or_refuses_by_name(tmp_path: Path) -> None:
    verdicts: Counter[str] = Counter()
    for index in CASES:
        folder = tmp_path / str(index)
        folder.mkdir()
        outcome = run(draw(0, index), folder)
        assert not outcome.failed, f"{outcome}: python -m tests.truth --seed 0 --only {index}"
        verdicts[outcome.verdict] += 1
    assert verdicts["same"] >= len(CASES) // 3


def test_a_wrong_base_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = llama.ropes.rope

    def wrong(*args: Any, **options: Any) -> RopeConfig:
        return replace(right(*args, **options), theta=9000.0)

    shape = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 160,
        "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "max_position_embeddings": 64,
    }  # fmt: skip
    case = Case("llama", "generate", shape, "float32", 1)
    assert run(case, tmp_path).verdict == "same"
    monkeypatch.setattr(llama.ropes, "rope", wrong)
    assert run(case, tmp_path).verdict == "different"


def test_a_norm_behind_rope_takes_its_magnitude_out(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "attention_factor": 3.0,
            "original_max_position_embeddings": 16}  # fmt: skip
    shape = {
        "model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"], "vocab_size": 160,
        "hidden_size": 32, "intermediate_size": 32, "intermediate_size_mlp": 32,
        "num_hidden_layers": 1, "num_local_experts": 2, "num_attention_heads": 4, "head_dim": 8,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "attention_chunk_size": 64,
        "rms_norm_eps": 0.1, "rope_parameters": yarn,
    }  # fmt: skip
    assert run(Case("llama4_text", "generate", shape, "float32", 1), tmp_path) == Outcome("same")


def test_no_key_that_transformers_computes_with_is_left_unread() -> None:
    assert unread("starcoder2") == []

    def forgetful(config: dict[str, Any]) -> ModelConfig:
        return model_config({k: v for k, v in config.items() if k != "norm_epsilon"})

    assert {key.split(":")[0] for key in unread("starcoder2", read=forgetful)} == {"norm_epsilon"}


class Routed(torch.nn.Module):
    """Chooses two experts for each token, by the scores of a table [tokens, experts]."""

    def __init__(self, table: list[list[float]]) -> None:
        super().__init__()
        self.table = torch.tensor(table)

    def forward(self, ids: torch.Tensor, use_cache: bool) -> torch.Tensor:
        return self.table[ids[0]].topk(2).indices


@pytest.mark.parametrize(("error", "first"), [(0.1, None), (0.125, 1), (0.25, 1), (0.375, 0)])
def test_a_near_tie_is_within_twice_the_rounding(error: float, first: int | None) -> None:
    """Of two experts 0.75 and 0.25 apart; a rounding of later tokens does not count."""
    exact = [[4.0, 2.0, 1.25, 0.0], [4.0, 2.0, 1.75, 0.0], [9.0, 9.0, 0.0, 0.0]]
    near = [[value + error for value in row] for row in exact[:2]] + [[0.0, 0.0, 9.0, 9.0]]
    expected = 2 if first is None else first
    assert first_near_tie(Routed(exact), Routed(near), [0, 1, 2]) == expected  # type: ignore[arg-type]
    assert first_near_tie(Routed(exact), Routed(near), [0, 1]) == first  # type: ignore[arg-type]
