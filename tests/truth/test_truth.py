"""A few of `make truth`'s configurations, and that it sees a wrong one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.core.config import RopeConfig
from quire.models.architectures import llama
from tests.truth.choices import ARCHITECTURES, Case, draw
from tests.truth.compare import run

CASES = 3 * len(ARCHITECTURES)

pytestmark = pytest.mark.filterwarnings("ignore")


def test_quire_computes_what_transformers_does_or_refuses_by_name(tmp_path: Path) -> None:
    verdicts: Counter[str] = Counter()
    for index in range(CASES):
        folder = tmp_path / str(index)
        folder.mkdir()
        outcome = run(draw(0, index), folder)
        assert not outcome.failed, f"{outcome}: python -m tests.truth --seed 0 --only {index}"
        verdicts[outcome.verdict] += 1
    assert verdicts["same"] >= CASES // 2


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
