"""Sampling values of the generation config, and the flags that choose them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.checkpoint.source import ModelSource
from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs
from quire.resolve.model import with_generation_flags

OWN = {"temperature": 0.6, "top_k": 20, "eos_token_id": 7, "suppress_tokens": [3]}


def generation(**flags: Any) -> dict[str, Any]:
    source = ModelSource("m", "hf", None, {}, OWN, None)
    return with_generation_flags(source, EngineArgs(**flags)).generation_config


def test_the_models_own_or_none_but_the_end_tokens_or_those_of_a_folder(tmp_path: Path) -> None:
    assert generation() == OWN
    assert generation(generation_config="vllm") == {"eos_token_id": 7}
    (tmp_path / "generation_config.json").write_text(json.dumps({"top_p": 0.5}))
    assert generation(generation_config=str(tmp_path)) == {"top_p": 0.5}


def test_single_values_are_replaced() -> None:
    over = {"temperature": 0.2, "top_k": None, "min_p": 0.1}
    assert generation(override_generation_config=over) == {**OWN, **over}
    flags: dict[str, Any] = {"generation_config": "vllm", "override_generation_config": over}
    assert generation(**flags) == {"eos_token_id": 7, **over}


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"generation_config": "nowhere"}, "generation_config is 'nowhere'"),
        ({"override_generation_config": '{"max_new_tokens": 5}'}, "max_new_tokens cannot be set"),
        ({"override_generation_config": '{"temperature": -1}'}, "temperature"),
        ({"override_generation_config": '{"top_k": "many"}'}, "top_k"),
        ({"override_generation_config": "0.6"}, "--override-generation-config"),
    ],
)
def test_wrong_values_are_named(flags: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        generation(**flags)


def test_a_wrong_value_of_a_file_hides_no_flag(tmp_path: Path) -> None:
    """Values that fail together are all left out, the flag's too."""
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": -1}))
    flags = {"generation_config": str(tmp_path)}
    assert generation(**flags) == {"temperature": -1}  # which gets a warning later
    with pytest.raises(ConfigError, match="temperature is -1"):
        generation(**flags, override_generation_config={"top_p": 0.5})
    over = {"top_p": 0.5, "temperature": None}
    assert generation(**flags, override_generation_config=over) == over
