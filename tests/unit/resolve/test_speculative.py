"""`--speculative-config`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.core.config import SpeculativeConfig
from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.resolve.speculative import parse_speculative_config
from quire.system.hardware import detect

SHAPE = {
    "vocab_size": 300, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "moe_intermediate_size": 64,
    "max_position_embeddings": 128,
}  # fmt: skip


def parse(fields: Any, notes: list[str] | None = None) -> SpeculativeConfig | None:
    text = fields if isinstance(fields, str) else json.dumps(fields)
    return parse_speculative_config(text, 256, [] if notes is None else notes)


def test_defaults_are_vllms() -> None:
    assert parse_speculative_config(None, 256, []) is None
    assert parse({"method": "ngram", "num_speculative_tokens": 3}) == SpeculativeConfig("ngram", 3)
    found = parse({"model": "ngram", "prompt_lookup_max": 3})
    assert found == SpeculativeConfig("ngram", 4, prompt_lookup_min=3, prompt_lookup_max=3)
    draft = parse({"model": "some/draft", "num_speculative_tokens": 3})
    assert draft == SpeculativeConfig("draft_model", 3, "some/draft")
    assert parse({"method": "suffix"}) == SpeculativeConfig("suffix", 24)
    assert parse({"method": "suffix", "num_speculative_tokens": None}) == parse(
        {"method": "suffix"}
    )


def test_fields_that_change_nothing_are_noted() -> None:
    notes: list[str] = []
    config = parse({"method": "ngram", "rejection_sample_method": "strict"}, notes)
    assert config == SpeculativeConfig("ngram", 4)
    assert "rejection_sample_method has no effect" in notes[0]
    parse({"method": "ngram", "synthetic_acceptance_rate": 0.8}, notes)
    assert "the answers are wrong" in notes[1]
    others = {"draft_tensor_parallel_size": 2, "use_heterogeneous_vocab": True}
    draft = parse({"model": "some/draft", **others}, notes)
    assert draft == SpeculativeConfig("draft_model", 4, "some/draft")
    assert [line.split()[1] for line in notes[2:]] == list(others)


def test_synthetic_acceptance_in_vllms_spellings() -> None:
    def rates(**fields: Any) -> tuple[float, ...]:
        config = parse({"method": "ngram", "rejection_sample_method": "synthetic", **fields})
        return config.synthetic_acceptance

    assert rates(synthetic_acceptance_rate=0.8) == (0.8,) * 4
    assert rates(synthetic_acceptance_rates=[1.0, 0.5, 0.25, 0]) == (1.0, 0.5, 0.5, 0.0)
    assert rates(synthetic_acceptance_rates=[0, 0, 0, 0]) == (0.0,) * 4
    assert rates(synthetic_acceptance_length=3.5) == (1.0, 1.0, 0.5, 0.0)
    assert rates(synthetic_acceptance_length=5) == (1.0,) * 4


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ("{", "is wrong"),
        ("[]", "is wrong"),
        ({"method": "medusa"}, "no method 'medusa'. Use one of: ngram, suffix, draft_model"),
        ({}, "it has no method. Use one of"),
        ({"method": "draft_model"}, "needs a `model`"),
        ({"method": "ngram", "model": "some/draft"}, "has no model"),
        ({"method": "ngram", "num_draft_tokens": 3}, "'num_draft_tokens'; did you mean"),
        ({"method": "ngram", "num_speculative_tokens": 0}, r"is 0; it must be in \[1, 64\]"),
        ({"method": "ngram", "num_speculative_tokens": "4"}, "Expected `int`"),
        ({"method": "ngram", "prompt_lookup_min": 3, "prompt_lookup_max": 2}, "is 2; it must"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 1.5}, "is 1.5; it must be"),
        ({"method": "ngram", "num_speculative_tokens_per_batch_size": [[1, 4, 9]]}, "1, 4, 9"),
        ({"method": "ngram", "num_speculative_tokens_per_batch_size": [[5, 4, 1]]}, "ascending"),
        ({"method": "suffix", "synthetic_acceptance_rate": -0.1}, "is -0.1; it must"),
        ({"method": "ngram", "synthetic_acceptance_rate": "0.8"}, "'0.8'; it must be a number"),
        ({"method": "ngram", "synthetic_acceptance_rates": [0.5]}, "a list of 4 numbers"),
        (
            {"method": "ngram", "synthetic_acceptance_rates": [0.5, 0.6, 0, 0]},
            "no rate may be above the one before it",
        ),
        ({"method": "ngram", "synthetic_acceptance_length": 5.5}, r"a number in \[1, 5\]"),
        (
            {"method": "ngram", "synthetic_acceptance_rate": 1, "synthetic_acceptance_length": 2},
            "give one of synthetic_acceptance_rate, synthetic_acceptance_rates",
        ),
        ({"method": "ngram", "synthetic_rate": 1}, "it has synthetic_rate; give one of"),
        ({"method": "ngram", "synthetic_acceptance": [1, 1]}, "it has synthetic_acceptance; give"),
        ({"method": "ngram", "rejection_sample_method": "synthetic"}, "'synthetic' without a rate"),
    ],
)
def test_wrong_configurations_are_refused(fields: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse(fields)


def test_drafts_must_fit_into_a_step() -> None:
    with pytest.raises(ConfigError, match="a step has at most 8 tokens"):
        parse_speculative_config('{"method": "ngram", "num_speculative_tokens": 8}', 8, [])


def test_architectures_without_a_known_mtp_layer_are_refused(tmp_path: Path) -> None:
    config = {"model_type": "ernie4_5_moe", "moe_num_experts": 4, "moe_k": 2}
    (tmp_path / "config.json").write_text(json.dumps({**SHAPE, **config}))
    args = EngineArgs(
        model=str(tmp_path), load_format="dummy", speculative_config='{"method": "mtp"}'
    )
    with pytest.raises(ConfigError, match="no MTP layer of the architecture 'ernie4_5_moe'"):
        resolve(args, detect())
