"""What a user changes of a model's own configuration, and what of it is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.checkpoint.source import ModelSource
from quire.core.errors import CheckpointError, ConfigError
from quire.core.model_config import ModelConfig
from quire.models.registry import model_config
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import engine_args, resolve
from quire.resolve.model import model_of, overridden
from quire.system.hardware import Hardware

MACHINE = Hardware(cores=4, memory_bytes=2**34, available_bytes=2**34)
PRESET = EngineArgs(model="qwen3-0.6b", load_format="dummy")
LLAVA: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"],
    "text_config": {"model_type": "llama", "vocab_size": 32064, "rms_norm_eps": 1e-5},
    "vision_config": {
        "hidden_size": 64, "intermediate_size": 96, "model_type": "clip_vision_model",
        "num_attention_heads": 4, "num_hidden_layers": 3, "patch_size": 14, "image_size": 56,
    },
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def model(overrides: dict[str, Any] | None) -> ModelConfig:
    text = None if overrides is None else json.dumps(overrides)
    return resolve(replace(PRESET, hf_overrides=text), MACHINE).config.model


def warnings(overrides: dict[str, Any] | None) -> list[str]:
    args = replace(PRESET, hf_overrides=None if overrides is None else json.dumps(overrides))
    return [note for note in resolve(args, MACHINE).notes if note.startswith("YaRN")]


def test_fields_take_the_place_of_the_models_own() -> None:
    plain = model(None)
    assert model({}) == plain
    assert model({"rms_norm_eps": 0.5}).norm_eps == 0.5
    assert model({"max_position_embeddings": 99}).max_position_embeddings == 99
    assert model({"rope_theta": 5.0}).rope.theta == 5.0  # type: ignore[union-attr]


def test_an_error_in_metadata_names_the_file() -> None:
    """A GGUF file has no config.json."""
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": 0, "vocab_size": 9}
    source = ModelSource("m", "gguf", Path("there/m.gguf"), config, {}, None)
    with pytest.raises(
        CheckpointError, match=r"^m\.gguf, in terms of config\.json: hidden_size is 0"
    ):
        model_of(source, [])


def test_fields_of_a_text_model() -> None:
    """They keep the rest of text_config, and may stand at the top level."""

    def read(given: dict[str, Any], **more: Any) -> ModelConfig:
        source = ModelSource("m", "dummy", None, LLAVA | more, {}, None)
        return model_config(overridden(source, json.dumps(given)).config)

    plain = read({})
    for given in ({"text_config": {"rms_norm_eps": 0.5}}, {"rms_norm_eps": 0.5}):
        assert read(given) == replace(plain, norm_eps=0.5)
    assert read({"max_position_embeddings": 99}).max_position_embeddings == 99
    assert read({"rope_theta": 5.0}).rope.theta == 5.0  # type: ignore[union-attr]
    both = {"rms_norm_eps": 0.5, "model_type": "llava"}
    assert read(both, rms_norm_eps=0.1, model_type="llava") == read(both)  # also if both have it
    assert read(both).norm_eps == 0.5
    assert read({"vision_config": {"image_size": 28}}).vision != plain.vision
    with pytest.raises(CheckpointError, match="text_config is 'x'"):
        read({"text_config": "x"})


def test_a_field_is_taken_away() -> None:
    with pytest.raises(CheckpointError, match="vocab_size"):
        model({"vocab_size": None})


def test_rope_scaling_leaves_the_rest_of_rope() -> None:
    plain = model(None).rope
    stretched = model({"rope_scaling": YARN})
    assert (stretched.rope.scaling, stretched.rope.theta) == ("yarn", plain.theta)
    assert stretched.max_position_embeddings == 131072
    newer = {"rope_parameters": {**YARN, "rope_theta": 7.0}, "rope_scaling": None}
    assert model(newer).rope.scaling == "yarn"  # type: ignore[union-attr]
    assert model(newer).rope.theta == 7.0  # type: ignore[union-attr]
    assert model({"rope_parameters": YARN}) == stretched


def test_static_yarn_is_told_with_two_ways_out_that_work() -> None:
    assert warnings(None) == []
    assert warnings({"rope_scaling": {**YARN, "factor": 1.0}}) == []
    [warning] = warnings({"rope_scaling": YARN})
    assert "below the trained 32,768 tokens" in warning
    plain, dynamic = (json.loads(text) for text in warning.split("'")[1::2] if text[0] == "{")
    assert model(plain).rope == model(None).rope
    assert model(plain).max_position_embeddings == 32768
    assert model(dynamic).rope.scaling == "dynamic"  # type: ignore[union-attr]
    assert model(dynamic).max_position_embeddings == 131072
    assert warnings(plain) == warnings(dynamic) == []


def test_longrope_of_long_texts_is_told_with_the_way_out() -> None:
    factors = {"short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
    longrope = {"rope_type": "longrope", "original_max_position_embeddings": 4096, **factors}
    args = replace(PRESET, hf_overrides=json.dumps({"rope_scaling": longrope}))

    def told(length: int) -> list[str]:
        notes = resolve(replace(args, max_model_len=length), MACHINE).notes
        return [note for note in notes if "--max-model-len 4096" in note]

    assert (len(told(4097)), told(4096)) == (1, [])


def test_what_is_no_json_object_is_refused() -> None:
    for text in ("{", "[]", "3"):
        with pytest.raises(ConfigError, match="--hf-overrides"):
            resolve(replace(PRESET, hf_overrides=text), MACHINE)


def test_from_python_it_is_a_dict() -> None:
    args = engine_args("qwen3-0.6b", {"hf_overrides": {"rope_theta": 5.0}})
    assert json.loads(args.hf_overrides or "") == {"rope_theta": 5.0}


def test_vllms_names_of_types() -> None:
    for name, ours in (("half", "float16"), ("float", "float32")):
        args = engine_args("qwen3-0.6b", {"load_format": "dummy", "dtype": name})
        assert resolve(args, MACHINE).config.dtype == ours
