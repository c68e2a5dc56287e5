"""LightOnOCR: the tower of Mistral Small 3 in front of Qwen3; no token ends a line."""

from __future__ import annotations

from dataclasses import replace

from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision import architecture as towers
from quire.models.vision.families import mistral3

_TOWER = {"image_size": 1540, "patch_size": 14, "hidden_act": "silu"}


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    tower = {**_TOWER, **hf.table(config, "vision_config")}
    found = mistral3.parse({"image_token_id": 151655, **config, "vision_config": tower}, text)
    return replace(found, kind="lighton_ocr", place="plain", line_ends=False)


ARCHITECTURE: towers.VisionArchitecture = replace(
    mistral3.ARCHITECTURE,
    parse=parse,
    tower=r"(?:model\.)?vision_(?:encoder|projection)\.",
    renamed=(
        ("vision_encoder.", "vision_tower."),
        ("vision_projection.", "multi_modal_projector."),
    ),
)
