"""Qwen3-VL: Qwen2-VL with interpolated positions, whose inner layers reach the text model, too."""

from __future__ import annotations

import math

from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision import architecture as towers
from quire.models.vision.families.qwen2_vl import SETTINGS, TEXT, TOWER, grid, names

_DEEP_LAYERS = [8, 16, 24]
_MOST_DEEP = 16
_MERGERS = {"connector": "merger"} | {
    f"deep.{i}": f"deepstack_merger_list.{i}" for i in range(_MOST_DEEP)
}


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    hidden = hf.integer(vision, "hidden_size", default=1152)
    tower = grid(config, text, hidden, layers=27, patch=16)
    layers = tower["num_layers"]
    places = hf.integer(vision, "num_position_embeddings", default=2304)
    deep = vision.get("deepstack_visual_indexes", _DEEP_LAYERS)
    most = min(_MOST_DEEP, text.num_hidden_layers - 1)
    if (
        not isinstance(deep, list)
        or len(deep) > most
        or any(type(layer) is not int or not 0 <= layer < layers - 1 for layer in deep)
        or len(set(deep)) != len(deep)
    ):
        raise hf.wrong(
            "deepstack_visual_indexes", deep, f"at most {most} layers before number {layers - 1}"
        )
    if (side := math.isqrt(places)) ** 2 != places:
        raise hf.wrong("num_position_embeddings", places, "a square number")
    return VisionConfig(
        kind="qwen3_vl",
        **tower | {"positions": "corners"},
        intermediate_size=hf.integer(vision, "intermediate_size", default=4304),
        image_size=side * tower["patch_size"],
        activation=towers.gelu(vision, "hidden_act", "gelu_pytorch_tanh"),
        interleaved=True,
        deep_layers=tuple(deep),
    )


ARCHITECTURE = towers.VisionArchitecture(
    parse,
    TOWER,
    names(
        {
            "patch": "visual.patch_embed.proj",
            "positions": "visual.pos_embed",
            "norm": "visual.merger.norm",
            **{
                f"deep.{i}.0.norm": f"visual.deepstack_merger_list.{i}.norm"
                for i in range(_MOST_DEEP)
            },
            **{
                f"{stem}.{i}": f"visual.{name}.linear_fc{i + 1}"
                for stem, name in _MERGERS.items()
                for i in range(2)
            },
        },
        {"mlp.up": ("mlp.linear_fc1",), "mlp.down": ("mlp.linear_fc2",)},
    ),
    # Experts share tensors [experts, in, out].
    text=((r"^model\.language_model\.(.*\.experts\.\w+_proj)$", r"model.\1.transposed"), *TEXT),
    text_types={
        "qwen3_vl": "qwen3",
        "qwen3_vl_text": "qwen3",
        "qwen3_vl_moe": "qwen3_moe",
        "qwen3_vl_moe_text": "qwen3_moe",
    },
    processor=towers.ON_SIGLIP | {"size": {"shortest_edge": 2**16, "longest_edge": 2**24}},
    settings=SETTINGS,
)
