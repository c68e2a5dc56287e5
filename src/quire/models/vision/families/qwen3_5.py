"""Qwen3.5: the tower of Qwen3-VL, whose inner layers do not reach the text model."""

from __future__ import annotations

from dataclasses import replace

from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision.families import qwen3_vl
from quire.models.vision.families.qwen2_vl import TEXT

_IMAGE = 248_056


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    tower = {**hf.table(config, "vision_config"), "deepstack_visual_indexes": []}
    whole = {"image_token_id": _IMAGE, **config, "vision_config": tower}
    return replace(qwen3_vl.parse(whole, text), kind="qwen3_5")


ARCHITECTURE = replace(
    qwen3_vl.ARCHITECTURE,
    parse=parse,
    text=TEXT,
    text_types={"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"},
)
