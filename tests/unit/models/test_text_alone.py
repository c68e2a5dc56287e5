"""Which models have a text model that is served alone, and what its tensors are called."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.errors import UnsupportedModelError
from quire.models.registry import model_config, text_alone, text_name

TEXT: dict[str, Any] = {
    "model_type": "mistral", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}  # fmt: skip
CONFIG = {"architectures": ["UnknownForConditionalGeneration"], "text_config": TEXT}

LLAVA: dict[str, Any] = {"architectures": ["LlavaForConditionalGeneration"]}
SIGLIP: dict[str, Any] = {"vision_config": {"model_type": "siglip_vision_model"}}


@pytest.mark.parametrize(
    ("changes", "alone"),
    [
        ({}, True),
        (LLAVA, False),
        (LLAVA | {"vision_config": {"model_type": "clip_vision_model"}}, False),
        (LLAVA | {"vision_config": {"model_type": "pixtral"}}, False),
        (LLAVA | SIGLIP, True),
        (LLAVA | SIGLIP | {"vision_feature_select_strategy": "full"}, False),
        (LLAVA | {"vision_config": {"model_type": "new"}}, True),
        ({"architectures": ["MistralForCausalLM"]}, False),
        ({"architectures": ["UnknownForRetrieval"]}, False),
        ({"architectures": "x"}, False),
        ({"text_config": TEXT | {"model_type": "mllama_text_model"}}, False),
        ({"text_config": TEXT | {"model_type": "bert"}}, False),
        ({"text_config": TEXT | {"model_type": []}}, False),
        ({"text_config": None}, False),
    ],
)
def test_which_models(changes: dict[str, Any], alone: bool) -> None:
    assert text_alone(CONFIG | changes) == alone


def test_the_text_model_is_read() -> None:
    model = model_config(CONFIG | {"tie_word_embeddings": True, "torch_dtype": "bfloat16"})
    assert (model.architecture, model.dtype) == ("mistral", "bfloat16")
    assert model.tie_word_embeddings
    assert model.vision is None
    unknown = {"text_config": TEXT | {"model_type": "new"}, "vision_config": {}}
    with pytest.raises(UnsupportedModelError, match="UnknownForConditionalGeneration"):
        model_config(CONFIG | unknown)


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("model.language_model.layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("language_model.model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("model.text_model.norm.weight", "norm.weight"),
        ("mtp.fc.weight", "mtp.fc.weight"),
        ("model.layers.0.input_layernorm.weight", "model.layers.0.input_layernorm.weight"),
        ("model.visual.blocks.0.norm1.weight", None),
        ("vision_tower.layers.0.norm.weight", None),
        ("model.multi_modal_projector.linear_1.weight", None),
        ("audio_tower.embed_positions.weight", None),
    ],
)
def test_names(stored: str, name: str | None) -> None:
    assert text_name(stored) == name


def test_a_refusal_does_not_name_the_refused_class_as_known() -> None:
    vision = {"vision_config": {"model_type": "new"}, "text_config": {}}
    with pytest.raises(UnsupportedModelError, match="LLaVA only with a tower of CLIP, SigLIP or"):
        model_config(LLAVA | vision)
