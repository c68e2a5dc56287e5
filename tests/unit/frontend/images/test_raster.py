"""Resized and cut pixels are Pillow's."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from PIL import Image

from quire.frontend.images.raster import Raster
from quire.ops.isa import available_isas
from quire.ops.native.pixels import resize

SIZES = [(1, 1), (2, 3), (7, 5), (31, 64), (97, 10), (10, 203), (256, 131)]


def noise(size: tuple[int, int], seed: int) -> Image.Image:
    """Random pixels, most of them black or white: sums that leave 0 to 255 on both sides."""
    draw = np.random.default_rng(seed)
    pixels = draw.integers(-200, 456, (size[1], size[0], 3)).clip(0, 255)
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("resample", [1, 2, 3])
def test_resized_pixels_are_those_of_pillow(isa: str, resample: int) -> None:
    for number, size in enumerate(SIZES):
        image = noise(size, number)
        for wanted in SIZES:
            found = resize(image.tobytes(), size, resample, wanted, isa)
            assert found == image.resize(wanted, resample).tobytes(), (size, wanted)


@pytest.mark.parametrize("resample", [0, 1, 2, 3, 4, 5])
def test_every_filter_and_any_box(resample: int) -> None:
    random, image = Random(resample), noise((40, 30), 1)
    raster = Raster(*image.size, image.tobytes())
    assert raster.resize(raster.size, resample) is raster
    smaller = image.resize((23, 9), resample)
    assert raster.resize((23, 9), resample) == Raster(23, 9, smaller.tobytes())
    for _ in range(50):
        left, top = random.randint(-50, 50), random.randint(-50, 50)
        box = left, top, left + random.randint(1, 60), top + random.randint(1, 60)
        part = image.crop(box)
        assert raster.crop(box) == Raster(*part.size, part.tobytes()), box


@pytest.mark.parametrize(
    ("size", "resample", "wanted"),
    [((2, 2), 1, (2, 2)), ((3, 1), 0, (2, 2)), ((3, 1), 1, (0, 2)), ((3, 1), 1, (1 << 20, 1 << 9))],
)
def test_wrong_sizes_and_filters_are_refused(
    size: tuple[int, int], resample: int, wanted: tuple[int, int]
) -> None:
    with pytest.raises(ValueError, match=r"pixels|filter"):
        resize(bytes(9), size, resample, wanted)
