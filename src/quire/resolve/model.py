"""What users override of a model: its configuration and its generation config."""

from __future__ import annotations

import json
import os.path
from dataclasses import replace
from typing import Any

from quire.checkpoint.json_file import read_json
from quire.checkpoint.source import ModelSource
from quire.core.config import LoadFormat
from quire.core.errors import CheckpointError, InvalidRequestError, UnsupportedModelError
from quire.core.model_config import ModelConfig
from quire.core.sampling_params import SamplingParams
from quire.models import rope
from quire.models.registry import model_config, text_alone
from quire.resolve.arguments import EngineArgs
from quire.resolve.flag_values import expanded, read_object, value_error, wrong_flag

LOAD_FORMATS: dict[str, LoadFormat] = {"hf": "safetensors", "gguf": "gguf", "dummy": "dummy"}
"""Kind of a source → how its weights are read."""
_TEXT = ("rope_", "max_position_embeddings")
"""Prefixes of fields that only the text model reads, even if its table leaves them out."""
_FLAG = "--hf-overrides"
SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Fields of generation_config.json that are values for unset sampling fields."""
_END = "eos_token_id"


def model_of(source: ModelSource, notes: list[str]) -> ModelConfig:
    """Return the model of a source, and note what of it is left out; raises as `model_config`."""
    if text_alone(source.config):
        notes.append(
            f"{', '.join(source.config['architectures'])}: Quire reads the text model alone and "
            "refuses images, audio and video."
        )
    try:
        return model_config(source.config)
    except (CheckpointError, UnsupportedModelError) as error:
        start = "config.json: "
        if source.path is None or source.kind != "gguf" or not error.what.startswith(start):
            raise
        what = f"{source.path.name}, in terms of {error.what}"
        raise type(error)(what, fix="Download or convert it again.", param=error.param) from error


def overridden(source: ModelSource, overrides: str | None) -> ModelSource:
    """Return the model's source with fields of config.json replaced.

    Args:
        overrides: a JSON object; null removes a field. RoPE's fields work in any spelling
            (see `models.rope.overridden`). Fields of the text model may stand at the top level.

    Raises:
        ConfigError: it is no JSON object.
    """
    if overrides is None:
        return source
    given = read_object("hf_overrides", overrides, '{"max_position_embeddings": 4096}')
    config = source.config
    for part in ("text_config", "vision_config"):
        own, asked = config.get(part), given.get(part, {})
        if not isinstance(own, dict) or not isinstance(asked, dict):
            continue
        if part == "text_config":
            outer = {n: given[n] for n in given if n in own or n.startswith(_TEXT)}
            asked = {**outer, "model_type": own.get("model_type")} | asked
        given[part] = rope.overridden(own, asked)
    return replace(source, config=rope.overridden(config, given))


def with_generation_flags(source: ModelSource, args: EngineArgs) -> ModelSource:
    """Return the model's source with the generation config that the flags ask for.

    `vllm` leaves only its end tokens. Lengths cannot be set: a request decides how long its
    answer may be.

    Raises:
        ConfigError: a folder has no such file, or a value is unknown or out of range.
        CheckpointError: the file is broken.
    """
    found = source.generation_config
    if args.generation_config == "vllm":
        found = {_END: found[_END]} if _END in found else {}
    elif args.generation_config != "auto":
        file = expanded(args.generation_config, "generation_config") / "generation_config.json"
        if not os.path.isfile(file):  # unlike `Path.is_file`, also where a name is too long
            raise value_error(
                args, "generation_config", "it must be auto, vllm or a folder with such a file."
            )
        found = read_json(file)
    name = "override_generation_config"
    given = read_object(name, args.override_generation_config, '{"temperature": 0.6}')
    if unknown := sorted(set(given) - set(SAMPLING_KEYS)):
        raise wrong_flag(
            name, f"{', '.join(unknown)} cannot be set; {', '.join(SAMPLING_KEYS)} can."
        )
    both = {**found, **given}
    values = {key: both[key] for key in SAMPLING_KEYS if given and both.get(key) is not None}
    try:  # without the flag, a wrong value of the file gets a warning
        SamplingParams(**values)
    except InvalidRequestError as error:
        raise wrong_flag(name, str(error)) from None
    return replace(source, generation_config=both)


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


def longrope_note(model: ModelConfig, max_model_len: int) -> str | None:
    """Return a note on LongRoPE's effect on short prompts; None without it, or with short texts."""
    own = model.rope
    if own is None or own.scaling != "longrope":
        return None
    trained = own.params["original_max_position_embeddings"]
    if max_model_len <= trained:
        return None
    return (
        f"RoPE has the factors for long texts at every length, because max_model_len exceeds the "
        f"trained {trained:,} tokens. If no text is longer, --max-model-len {trained} gives the "
        "answers of Transformers, which takes other factors for short texts."
    )


def _written(trained: int, scaling: dict[str, Any] | None) -> str:
    fields = {"max_position_embeddings": trained, "rope_scaling": scaling}
    return f"{_FLAG} '{json.dumps(fields)}'"
