"""LLaVA-NeXT: LLaVA on tiles of an image, whose lines end with a row of their own."""

from __future__ import annotations

from dataclasses import replace

from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision import architecture as towers
from quire.models.vision.families import llava

_SIZES = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = llava.parse(config, text)
    sizes, side = config.get("image_grid_pinpoints", _SIZES), vision.image_size
    if (
        not isinstance(sizes, list)
        or not sizes
        or any(not isinstance(size, list) or len(size) != 2 for size in sizes)
        or any(type(n) is not int or n <= 0 or n % side for size in sizes for n in size)
    ):
        raise hf.wrong("image_grid_pinpoints", sizes, f"pairs of multiples of {side}")
    return replace(
        vision,
        kind="llava_next",
        fit="anyres",
        place="tile_lines",
        resolutions=tuple((height, width) for height, width in sizes),
    )


_LLAVA = llava.ARCHITECTURE
ARCHITECTURE = towers.VisionArchitecture(
    parse,
    tower=rf"{_LLAVA.tower}|(?:model\.|language_model\.)?image_newline",
    names=replace(_LLAVA.names, top={**_LLAVA.names.top, "newline": "image_newline"}),
    text=_LLAVA.text,
)
