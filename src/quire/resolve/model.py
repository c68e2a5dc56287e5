"""User overrides of a model's own configuration, and warnings about its cost."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from quire.checkpoint.source import ModelSource
from quire.core.config import LoadFormat
from quire.core.model_config import ModelConfig
from quire.models import rope
from quire.resolve.flag_values import read_object

LOAD_FORMATS: dict[str, LoadFormat] = {"hf": "safetensors", "gguf": "gguf", "dummy": "dummy"}
"""Kind of a source → how its weights are read."""
_FLAG = "--hf-overrides"


def overridden(source: ModelSource, overrides: str | None) -> ModelSource:
    """Return the model's source with fields of config.json replaced.

    Args:
        overrides: a JSON object; null removes a field. RoPE's fields work in any spelling
            (see `models.rope.overridden`).

    Raises:
        ConfigError: it is no JSON object.
    """
    if overrides is None:
        return source
    given = read_object("hf_overrides", overrides, '{"max_position_embeddings": 4096}')
    return replace(source, config=rope.overridden(source.config, given))


def yarn_warning(model: ModelConfig) -> str | None:
    """Return a warning about static YaRN's effect on short prompts; None without YaRN."""
    own = model.rope
    if own is None or own.scaling != "yarn" or own.params["factor"] <= 1.0:
        return None
    trained, factor = own.params["original_max_position_embeddings"], own.params["factor"]
    return (
        f"YaRN stretches positions {factor:g} times at every length. This lowers the quality of "
        f"prompts below the trained {trained:,} tokens. If no prompt is longer: "
        f"{_written(trained, None)}; if some are: "
        f"{_written(trained, {'rope_type': 'dynamic', 'factor': factor})}, "
        "which does not change short prompts."
    )


def _written(trained: int, scaling: dict[str, Any] | None) -> str:
    fields = {"max_position_embeddings": trained, "rope_scaling": scaling}
    return f"{_FLAG} '{json.dumps(fields)}'"
