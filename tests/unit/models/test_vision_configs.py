"""Configurations that published models that read images have: much of them is left out."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.models.registry import model_config
from tests.golden.tiny_vision import MODELS

SIGLIP = {
    "hidden_size": 1152, "intermediate_size": 4304, "model_type": "siglip_vision_model",
    "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14,
}  # fmt: skip
CLIP = {
    "hidden_size": 1024, "intermediate_size": 4096, "model_type": "clip_vision_model",
    "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "image_size": 336,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "vision", "expected"),
    [
        (
            "Gemma3",
            {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
             "num_hidden_layers": 34, "sliding_window": 1024},
            SIGLIP | {"image_size": 896},
            (262208, 8, 4, 256, 131072),
        ),
        (
            "Llava",
            {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
            CLIP,
            (32064, 32, 32, 128, 4096),
        ),
        (
            "LlavaNext",
            {"model_type": "mistral", "intermediate_size": 14336, "num_key_value_heads": 8,
             "max_position_embeddings": 32768, "vocab_size": 32064, "sliding_window": None},
            CLIP,
            (32064, 32, 8, 128, 32768),
        ),
        (
            "PaliGemma",
            {"model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384,
             "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
             "vocab_size": 257216},
            SIGLIP,
            (257216, 8, 1, 256, 8192),
        ),
    ],
)  # fmt: skip
def test_what_is_left_out_has_its_default(
    name: str, text: dict[str, Any], vision: dict[str, Any], expected: tuple[int, ...]
) -> None:
    classes = [f"{name}ForConditionalGeneration"]
    found = model_config({"architectures": classes, "text_config": text, "vision_config": vision})
    assert found.vision is not None
    assert expected == (
        found.vocab_size,
        found.num_attention_heads,
        found.num_key_value_heads,
        found.head_dim,
        found.max_position_embeddings,
    )


@pytest.mark.parametrize(
    ("kind", "whole", "text", "tied"),
    [
        ("gemma3", False, True, False),
        ("gemma3", None, False, True),
        ("paligemma", True, False, True),
        ("llava", False, True, True),
        ("qwen2_vl", None, False, False),
        ("lighton_ocr", None, False, True),
    ],
)
def test_which_table_ties_embeddings(kind: str, whole: Any, text: bool, tied: bool) -> None:
    name, config, _ = MODELS[kind]
    config = config | {"architectures": [f"{name}ForConditionalGeneration"]}
    inner = config["text_config"] | {"tie_word_embeddings": text}
    if kind.startswith("qwen"):
        inner |= {"model_type": f"{kind}_text"}
    found = model_config(config | {"tie_word_embeddings": whole, "text_config": inner})
    assert found.tie_word_embeddings == tied


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_the_base_of_a_towers_positions(kind: str) -> None:
    name, config, _ = MODELS[kind]
    text = config["text_config"] | {"model_type": f"{kind}_text"}
    config = config | {"architectures": [f"{name}ForConditionalGeneration"], "text_config": text}

    def base(**rope: Any) -> float:
        tower = config["vision_config"] | {"rope_parameters": rope}
        vision = model_config(config | {"vision_config": tower}).vision
        return vision.rope_theta

    assert base() == 10_000.0
    assert {base(rope_type=kind, rope_theta=5000.0) for kind in ("default", "axial")} == {5000.0}
    with pytest.raises(UnsupportedModelError, match="rope_type is 'yarn'"):
        base(rope_type="yarn", factor=2.0)


@pytest.mark.parametrize(
    ("kind", "base", "eps"), [("qwen2_vl", 1e6, 1e-5), ("qwen2_5_vl", 1e6, 1e-5),
                              ("qwen3_vl", 5e5, 1e-6), ("qwen3_vl_moe", 5e5, 1e-6)],
)  # fmt: skip
def test_defaults_of_the_text_model_are_those_of_the_whole(
    kind: str, base: float, eps: float
) -> None:
    name, config, _ = MODELS[kind]
    rope = {k: v for k, v in config["text_config"]["rope_parameters"].items() if k != "rope_theta"}
    text = config["text_config"] | {"rope_parameters": rope, "model_type": f"{kind}_text"}
    config = config | {"architectures": [f"{name}ForConditionalGeneration"]}
    found = model_config(config | {"text_config": text})
    assert (found.rope.theta, found.norm_eps) == (base, eps)
    own = text | {"rope_parameters": rope | {"rope_theta": 7e3}, "rms_norm_eps": 1e-3}
    found = model_config(config | {"text_config": own})
    assert (found.rope.theta, found.norm_eps) == (7e3, 1e-3)


@pytest.mark.parametrize(
    ("kind", "expected", "heads", "gate"),
    [
        ("glm4v", (16, 1e-5, 16, True), 12, 13696),
        ("glm4v_moe", (16, 1e-5, 8, True), 12, 13696),
        ("glm_ocr", (16, 1e-5, 16, False), 16, 192),
    ],
)
def test_what_glm_leaves_out(kind: str, expected: Any, heads: int, gate: int) -> None:
    text = {
        "model_type": f"{kind}_text", "hidden_size": 64, "num_attention_heads": 4,
        "num_hidden_layers": 1, "vocab_size": 300, "intermediate_size": 96,
        "max_position_embeddings": 512, "num_key_value_heads": 2,
    }  # fmt: skip
    classes = [f"{MODELS[kind][0]}ForConditionalGeneration"]
    vision = {"out_hidden_size": 64}
    found = model_config({"architectures": classes, "text_config": text, "vision_config": vision})
    assert found.rope is not None
    values = found.head_dim, found.norm_eps, found.rope.rotary_dim, found.qkv_bias
    assert values == expected
    assert found.vision is not None
    assert found.vision.sections == (8, 12, 12)
    assert (found.vision.num_heads, found.vision.connector[2].rows) == (heads, gate)


@pytest.mark.parametrize("kind", ["llava", "pixtral"])
def test_an_activation_that_is_no_name(kind: str) -> None:
    name, config, _ = MODELS[kind]
    tower = config["vision_config"] | {"hidden_act": []}
    classes = [f"{name}ForConditionalGeneration"]
    with pytest.raises(CheckpointError, match=r"hidden_act is \[\]"):
        model_config(config | {"architectures": classes, "vision_config": tower})


def test_the_norms_of_queries_have_one_epsilon() -> None:
    name, config, _ = MODELS["internvl_normed"]
    tower = config["vision_config"] | {"layer_norm_eps": 1e-5}
    config = config | {"architectures": [f"{name}ForConditionalGeneration"]}
    with pytest.raises(CheckpointError, match=r"layer_norm_eps is 1e-05; .* 1e-06"):
        model_config(config | {"vision_config": tower})


@pytest.mark.parametrize("kind", ["pixtral", "gemma3", "idefics3"])
def test_heads_that_do_not_divide_the_tower(kind: str) -> None:
    name, config, _ = MODELS[kind]
    tower = {"head_dim": None} | config["vision_config"] | {"num_attention_heads": 7}
    classes = [f"{name}ForConditionalGeneration"]
    with pytest.raises(CheckpointError, match="num_attention_heads is 7"):
        model_config(config | {"architectures": classes, "vision_config": tower})


def test_mistral_small_as_it_is_published() -> None:
    text = {
        "model_type": "mistral", "hidden_size": 5120, "head_dim": 128, "intermediate_size": 32768,
        "num_hidden_layers": 40, "rms_norm_eps": 1e-5, "rope_theta": 1e9, "sliding_window": None,
        "vocab_size": 131072, "max_position_embeddings": 131072,
    }  # fmt: skip
    vision = {
        "model_type": "pixtral", "head_dim": 64, "hidden_act": "silu", "image_size": 1540,
        "patch_size": 14, "rope_theta": 10000.0, "num_channels": 3,
    }  # fmt: skip
    config: dict[str, Any] = {
        "architectures": ["Mistral3ForConditionalGeneration"], "text_config": text,
        "vision_config": vision, "image_token_index": 10, "multimodal_projector_bias": False,
        "spatial_merge_size": 2, "vision_feature_layer": -1, "projector_hidden_act": "gelu",
    }  # fmt: skip
    found = model_config(config).vision
    assert (found.image_size, found.learned_positions, found.num_layers) == (1540, 0, 24)
    products = [(each.rows, each.activation) for each in found.connector]
    assert products == [(1024, "none"), (5120, "gelu"), (5120, "none")]
    with pytest.raises(UnsupportedModelError, match="vision_feature_layer is \\[-2, -1\\]"):
        model_config(config | {"vision_feature_layer": [-2, -1]})
    llava = {"architectures": ["LlavaForConditionalGeneration"]}
    with pytest.raises(UnsupportedModelError, match="vision_feature_select_strategy"):
        model_config(config | llava)
