"""EXAONE 4.5: the tower of Qwen2.5-VL with fewer heads of keys; positions of the text are plain."""

from __future__ import annotations

from dataclasses import replace

from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision import architecture as towers
from quire.models.vision.families import qwen2_5_vl


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    heads = hf.integer(vision, "num_heads", default=16)
    kv_heads = hf.integer(vision, "num_key_value_heads", default=8)
    if heads % kv_heads:
        raise hf.wrong("num_key_value_heads", kv_heads, f"a divisor of num_heads, {heads}")
    whole = {"image_token_id": 67, **config}
    found = qwen2_5_vl.parse(whole, text, kind="exaone4_5", turned=False)
    return replace(found, kv_heads=kv_heads)


ARCHITECTURE: towers.VisionArchitecture = replace(
    qwen2_5_vl.ARCHITECTURE,
    parse=parse,
    text_types={"exaone4_5_text": "exaone4"},
)
