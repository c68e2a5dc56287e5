"""The sizes of images, from preprocessor_config.json."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.core.images import Fit, VisionConfig
from quire.models.registry import model_config
from quire.resolve.images import _check_patches, _sizes
from tests.golden.tiny_vision import MODELS

SQUARE = {"height": 32, "width": 32}


def tower(fit: Fit, side: int) -> VisionConfig:
    return VisionConfig("any", 9, 32, 48, 2, 2, 4, "gelu", (), fit=fit, image_size=side)


@pytest.mark.parametrize(
    ("settings", "edge"),
    [
        ({}, 32),
        ({"size": 40, "crop_size": 32}, 40),
        ({"size": {"shortest_edge": 40, "height": None, "width": None}, "crop_size": SQUARE}, 40),
        ({"size": SQUARE, "crop_size": SQUARE | {"longest_edge": None}}, 0),
        ({"size": SQUARE | {"shortest_edge": None, "longest_edge": None}}, 0),
    ],
)
def test_null_says_nothing(settings: dict[str, Any], edge: int) -> None:
    assert _sizes(settings, tower("cropped", 32)) == {"crop": 32, "shortest_edge": edge}


@pytest.mark.parametrize(
    "settings",
    [
        {"size": {"shortest_edge": 32, "longest_edge": 64}},
        {"size": {"height": 48, "width": 48}},
        {"size": {"height": 32, "width": 48}},
        {"crop_size": {"height": 32, "width": 16}},
        {"crop_size": 16},
    ],
)
def test_images_that_the_tower_does_not_read(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"preprocessor_config.json: .* cuts 32 × 32"):
        _sizes(settings, tower("cropped", 32))


@pytest.mark.parametrize(
    ("settings", "edge"),
    [
        ({}, 64),
        ({"size": {"longest_edge": 40}}, 40),
        ({"size": SQUARE | {"longest_edge": None}}, 32),
    ],
)
def test_pixtrals_longest_edge(settings: dict[str, Any], edge: int) -> None:
    assert _sizes(settings, tower("bounded", 64)) == {"longest_edge": edge}
    with pytest.raises(ConfigError, match="one longest_edge"):
        _sizes({"size": {"height": 32, "width": 48}}, tower("bounded", 64))


@pytest.mark.parametrize("name", ["patch_size", "merge_size", "temporal_patch_size"])
def test_qwens_processor_cuts_as_the_tower_reads(name: str) -> None:
    text = {"model_type": "qwen2_vl_text", **MODELS["qwen2_vl"][1]["text_config"]}
    classes = ["Qwen2VLForConditionalGeneration"]
    vision = model_config({"architectures": classes, "text_config": text}).vision
    assert vision is not None
    _check_patches({"patch_size": 14, "merge_size": 2, "temporal_patch_size": None}, vision)
    with pytest.raises(ConfigError, match=f"{name} is 3"):
        _check_patches({name: 3}, vision)
