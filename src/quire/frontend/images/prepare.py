"""Decode an image with Pillow and resize it to what the tower reads.

The sizes and the pixels are those of Hugging Face's processors: `raster` resizes like Pillow.
"""

from __future__ import annotations

import hashlib
import io
import math
import time
import warnings
from typing import TYPE_CHECKING, Any

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.images import ImageConfig, Pixels, VisionConfig

if TYPE_CHECKING:
    from PIL.Image import Image

    from quire.frontend.images.raster import Raster

PARAM = "image"
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_PIXELS = 50_000_000
"""Of an image, before it is decoded."""
MAX_BYTES = 20 * 2**20
"""Of a file."""
MAX_MEMORY = 2 * 2**30
"""Address space of a process that decodes files: five copies of the largest image, and more."""
_LARGEST_SIDE = 4096
"""Idefics 3: of an image before it is cut into tiles."""
_MOST_ASPECT = 200
"""Qwen2-VL: the longer side of an image is at most so many times the shorter one."""


class Tile(msgspec.Struct, array_like=True):
    """Pixels that the tower reads at once: uint8 [height, width, 3].

    Attributes:
        rows: if not 0, `pixels` holds so many of the tower's results in float32 instead.
    """

    height: int
    width: int
    pixels: Pixels
    rows: int = 0


class Prepared(msgspec.Struct, array_like=True):
    """One image.

    Attributes:
        digest: sha256 of what the image is and of how it was prepared.
        tiles: in the order of the prompt.
        grid: tiles in height and width, beside the whole image; (0, 0) if there is only that.
        size: height and width of what was prepared.
        seconds: CPU time of preparing it, if it was noted.
    """

    digest: bytes
    tiles: list[Tile]
    grid: tuple[int, int] = (0, 0)
    size: tuple[int, int] = (0, 0)
    seconds: float = 0.0


def prepare(image: Any, vision: VisionConfig, config: ImageConfig) -> Prepared:
    """Return an image as the tower reads it.

    Args:
        image: the bytes of a file, a `PIL.Image.Image`, or an array [height, width, 3] or
            [3, height, width] of uint8, or of floats from 0 to 1.

    Raises:
        InvalidRequestError: it is damaged, too large, or no image.
    """
    settings = msgspec.json.encode((vision.kind, vision.patch_size, vision.merge, config))
    digest = hashlib.sha256(hashlib.sha256(settings).digest())
    if isinstance(image, bytes | bytearray):
        digest.update(b"file" + image)
        opened = _raster(_opened(bytes(image)))
    else:
        opened = _raster(_given(image))
        digest.update(f"pixels {opened.size}".encode() + opened.pixels)
    tiles, grid = _FITS[vision.fit](opened, vision, config)
    size = opened.height, opened.width
    return Prepared(digest.digest(), [_tile(tile) for tile in tiles], grid, size)


def timed(image: Any, vision: VisionConfig, config: ImageConfig) -> Prepared:
    """Do what `prepare` does, and note its CPU time."""
    begun = time.thread_time()
    found = prepare(image, vision, config)
    found.seconds = time.thread_time() - begun
    return found


def _opened(data: bytes) -> Image:
    """Decode a file: turned as its EXIF says, on white where it is transparent."""
    from PIL import Image, ImageOps

    if len(data) > MAX_BYTES:
        raise refused(f"the file has {len(data)} bytes; at most {MAX_BYTES} are allowed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # PIL warns of bombs, and of damage
            with Image.open(io.BytesIO(data), formats=FORMATS) as found:
                _check_size(found.size)
                found.load()
                ImageOps.exif_transpose(found, in_place=True)
                return _rgb(found)
    except (InvalidRequestError, MemoryError):
        raise
    except Exception as error:  # decoders raise anything
        why = str(error).partition("<")[0].strip() or type(error).__name__
        raise refused(
            f"it is no image of {', '.join(FORMATS)} that can be decoded ({why[:100]})"
        ) from None


def _given(image: Any) -> Image:
    """Return the image behind an object of Pillow or an array."""
    import numpy as np  # not in the API process
    from PIL import Image

    from quire.system.user_arrays import host_array

    if isinstance(image, Image.Image):
        _check_size(image.size)
        return _rgb(image)
    try:
        array = host_array(image)
    except TypeError as error:
        raise refused(f"it must be bytes, a PIL image or an array: {error}") from None
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim == 3 and array.shape[2] != 3 and array.shape[0] == 3:
        array = np.moveaxis(array, 0, 2)
    if array.ndim != 3 or array.shape[2] != 3 or not array.size:
        raise refused(f"an array of shape {list(array.shape)} is no image [height, width, 3]")
    _check_size((array.shape[1], array.shape[0]))
    if array.dtype != np.uint8:
        wide = array.astype(np.float32)
        if not (np.isfinite(wide).all() and wide.min() >= 0 and wide.max() <= 1):
            raise refused("an array of floats holds numbers from 0 to 1")
        array = (wide * 255).round().astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(array))


def _check_size(size: tuple[int, int]) -> None:
    width, height = size
    if not 0 < width * height <= MAX_PIXELS:
        raise refused(f"it has {width} × {height} pixels; at most {MAX_PIXELS} are allowed")


def _rgb(image: Image) -> Image:
    """Return an image in three channels, on white where it is transparent."""
    from PIL import Image as Images

    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image if image.mode == "RGB" else image.convert("RGB")
    layer = image.convert("RGBA")
    white = Images.new("RGBA", layer.size, (255, 255, 255, 255))
    return Images.alpha_composite(white, layer).convert("RGB")


def _raster(image: Image) -> Raster:
    from quire.frontend.images.raster import Raster  # native code: not in the API process

    return Raster(image.width, image.height, image.tobytes())


def _tile(image: Raster) -> Tile:
    return Tile(image.height, image.width, image.pixels)


Tiles = tuple[list[Any], tuple[int, int]]


def _cropped(image: Raster, vision: VisionConfig, config: ImageConfig) -> Tiles:
    """LLaVA: resize the shorter edge, and cut a square from the middle."""
    if not config.shortest_edge:
        return _square(image, vision, config)
    short, long = sorted(image.size)
    edge = config.shortest_edge
    other = int(edge * long / short)
    if other > MAX_PIXELS // edge:
        raise refused(f"one side is {long / short:.0f} times the other")
    size = (edge, other) if image.width <= image.height else (other, edge)
    image = image.resize(size, config.resample)
    left, top = ((side - config.crop) // 2 for side in image.size)
    # Beyond the image is black, as with the processor.
    if left < 0:
        left = -math.ceil((config.crop - image.width) / 2)
    if top < 0:
        top = -math.ceil((config.crop - image.height) / 2)
    return [image.crop((left, top, left + config.crop, top + config.crop))], (0, 0)


def _square(image: Raster, vision: VisionConfig, config: ImageConfig) -> Tiles:
    """Gemma 3, PaliGemma and SigLIP: resize to a square, whatever the aspect."""
    image = image.resize((config.crop, config.crop), config.resample)
    return [_in_patches(image, vision)], (0, 0)


def _in_patches(image: Raster, vision: VisionConfig) -> Raster:
    """Return a square without the lines and columns that no patch reads."""
    side = image.width // vision.patch_size * vision.patch_size
    return image if side == image.width else image.crop((0, 0, side, side))


def _panned(image: Raster, vision: VisionConfig, config: ImageConfig) -> Tiles:
    """Gemma 3: the whole as a square, and parts of a long image as others ("pan and scan")."""
    [whole], _ = _square(image, vision, config)
    short, long = sorted(image.size)
    least, (fewest, most) = config.shortest_edge, config.tiles
    if not config.split or long / short < config.aspect:
        return [whole], (0, 0)
    count = min(most, max(fewest, min(long // least, math.floor(long / short + 0.5))))
    side = math.ceil(long / count)
    if min(side, short) < least:
        return [whole], (0, 0)
    wide = image.width >= image.height
    parts = []
    for first in range(0, side * count, side):
        last = min(first + side, long)
        box = (first, 0, last, short) if wide else (0, first, short, last)
        parts += _square(image.crop(box), vision, config)[0]
    return [whole, *parts], (1, count) if wide else (count, 1)


def _whole(image: Raster, vision: VisionConfig, config: ImageConfig) -> Tiles:
    """Qwen2-VL: resize to whole rows, with a bounded number of pixels."""
    return _in_rows(image, image.size, vision, config), (0, 0)


def _framed(image: Raster, vision: VisionConfig, config: ImageConfig) -> Tiles:
    """GLM-4V: like Qwen2-VL, as if each side were at least a row; pixels of all frames count."""
    least = vision.patch_size * vision.merge
    width, height = image.size
    if min(width, height) < least:
        grow = max(least / height, least / width)
        width, height = int(width * grow), int(height * grow)
    return _in_rows(image, (width, height), vision, config), (0, 0)


def _grown(image: Raster, vision: VisionConfig, config: ImageConfig) -> Tiles:
    """PaddleOCR-VL: like Qwen2-VL, as if each side were at least a row."""
    least = vision.patch_size * vision.merge
    width, height = image.size
    if height < least:
        width, height = round(width * least / height), least
    if width < least:
        width, height = least, round(height * least / width)
    return _in_rows(image, (width, height), vision, config), (0, 0)


def _tiled(image: Raster, vision: VisionConfig, config: ImageConfig) -> Tiles:
    """LFM2-VL: like Qwen2-VL, at least a row; tiles of a large image stand before this."""
    unit = vision.patch_size * vision.merge
    width, height = (max(vision.patch_size, round(side / unit) * unit) for side in image.size)
    whole = _in_rows(image, image.size, vision, config, unit)
    if not config.split or width * height <= config.longest_edge * config.aspect:
        return whole, (0, 0)
    across, down = _nearest_grid(image, config)
    resized = image.resize((config.crop * across, config.crop * down), config.resample)
    tiles = _squares(resized, config.crop)
    return (tiles, (0, 0)) if len(tiles) == 1 else ([*tiles, *whole], (down, across))


def _in_rows(
    image: Raster, size: tuple[int, int], vision: VisionConfig, config: ImageConfig, side: int = 0
) -> list[Raster]:
    """Return the image resized to whole rows, as near as possible to this width and height.

    Args:
        side: the least, before the bounds of pixels count.
    """
    width, height = size
    if max(size) > _MOST_ASPECT * min(size):
        raise refused(f"one side is more than {_MOST_ASPECT} times the other")
    unit = vision.patch_size * vision.merge
    new_height, new_width = (max(side, round(each / unit) * unit) for each in (height, width))
    frames = vision.frames if vision.fit == "frames" else 1
    least, most = config.shortest_edge / frames, config.longest_edge / frames
    if new_height * new_width > most:
        shrink = math.sqrt(height * width / most)
        new_height, new_width = (
            max(unit, math.floor(each / shrink / unit) * unit) for each in (height, width)
        )
    elif new_height * new_width < least:
        grow = math.sqrt(least / (height * width))
        new_height, new_width = (math.ceil(each * grow / unit) * unit for each in (height, width))
    return [image.resize((new_width, new_height), config.resample)]


def _budget(image: Raster, vision: VisionConfig, config: ImageConfig) -> Tiles:
    """Gemma 4: as many whole rows as a bounded number of pixels holds."""
    unit = vision.patch_size * vision.merge
    grow = math.sqrt(config.longest_edge / (image.width * image.height))
    down, across = (math.floor(grow * side / unit) for side in (image.height, image.width))
    longest = config.longest_edge // unit**2
    if not down:
        down, across = 1, min(image.width // image.height, longest)
    elif not across:
        down, across = min(image.height // image.width, longest), 1
    return [image.resize((across * unit, down * unit), config.resample)], (0, 0)


def _bounded(image: Raster, vision: VisionConfig, config: ImageConfig) -> Tiles:
    """Pixtral: bound the longer side, and stretch both to whole rows."""
    unit = vision.patch_size * vision.merge
    shrink = max(1.0, max(image.size) / config.longest_edge)
    width, height = (max(1, math.floor(side / shrink)) for side in image.size)
    size = -(-width // unit) * unit, -(-height // unit) * unit
    return [image.resize(size, config.resample)], (0, 0)


def _split(image: Raster, vision: VisionConfig, config: ImageConfig) -> Tiles:
    """Idefics 3: resize the longer edge, cut into square tiles, and add the whole as one more."""
    side = config.crop
    width, height = _long_edge(image.size, config.longest_edge)
    image = image.resize((width, height), config.resample)
    whole = (side, side)
    if not config.split:
        return [image.resize(whole, config.resample)], (0, 0)
    aspect = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        height = math.ceil(int(width / aspect) / side) * side
    else:
        height = math.ceil(height / side) * side
        width = math.ceil(int(height * aspect) / side) * side
    image = image.resize((width, height), config.resample)
    if (width, height) == whole:
        return [image], (0, 0)
    grid = (height // side, width // side)
    return [*_squares(image, side), image.resize(whole, config.resample)], grid


def _anyres(image: Raster, vision: VisionConfig, config: ImageConfig) -> Tiles:
    """LLaVA-NeXT: the whole as a square, then tiles of it in the best of some sizes, on black."""
    side = config.crop
    height, width = max(vision.resolutions, key=lambda size: _fit(image.size, size))
    down, across = height / image.height, width / image.width
    if across < down:
        inner = width, max(1, min(math.ceil(image.height * across), height))
    else:
        inner = max(1, min(math.ceil(image.width * down), width)), height
    left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
    padded = image.resize(inner, config.resample).crop((-left, -top, width - left, height - top))
    tiles = [image.resize((side, side), config.resample), *_squares(padded, side)]
    return [_in_patches(tile, vision) for tile in tiles], (height // side, width // side)


def _canvas(image: Raster, vision: VisionConfig, config: ImageConfig) -> Tiles:
    """InternVL: tiles of the grid with the nearest aspect, and the whole behind them."""
    whole = (config.crop, config.crop)
    if not config.split:
        return [image.resize(whole, config.resample)], (0, 0)
    across, down = _nearest_grid(image, config)
    resized = image.resize((config.crop * across, config.crop * down), config.resample)
    tiles = _squares(resized, config.crop)
    if len(tiles) == 1:
        return tiles, (0, 0)
    return [*tiles, image.resize(whole, config.resample)], (down, across)


def _nearest_grid(image: Raster, config: ImageConfig) -> tuple[int, int]:
    """Return the tiles across and down of the grid with the nearest aspect."""
    least, most = config.tiles
    grids = [(w, h) for w in range(1, most + 1) for h in range(1, most + 1)]
    grids = sorted((g for g in grids if least <= g[0] * g[1] <= most), key=lambda g: g[0] * g[1])
    aspect, area = image.width / image.height, image.width * image.height
    best, nearest = (1, 1), math.inf
    for across, down in grids:
        off = abs(aspect - across / down)
        # Of grids as near, a larger one counts while it is not twice the image.
        if off < nearest or (off == nearest and area > 0.5 * config.crop**2 * across * down):
            best, nearest = (across, down), off
    return best


def _squares(image: Raster, side: int) -> list[Raster]:
    """Return the tiles of an image, line by line."""
    return [
        image.crop((left, top, left + side, top + side))
        for top in range(0, image.height, side)
        for left in range(0, image.width, side)
    ]


def _fit(image: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """Return how many pixels of an image a height and width keep, and minus those they waste."""
    width, height = image
    scale = min(size[1] / width, size[0] / height)
    kept = min(int(width * scale) * int(height * scale), width * height)
    return kept, kept - size[0] * size[1]


def _long_edge(size: tuple[int, int], longest: int) -> tuple[int, int]:
    """Return width and height with this longer edge, the shorter one even and at least 1."""
    width, height = size
    aspect = width / height
    if width >= height:
        width, height = longest, int(longest / aspect)
        height += height % 2
    else:
        width, height = int(longest * aspect), longest
        width += width % 2
    width, height = max(width, 1), max(height, 1)
    aspect = width / height
    if width >= height and width > _LARGEST_SIDE:
        width, height = _LARGEST_SIDE, int(_LARGEST_SIDE / aspect)
    elif height > width and height > _LARGEST_SIDE:
        width, height = int(_LARGEST_SIDE * aspect), _LARGEST_SIDE
    return max(width, 1), max(height, 1)


_FITS = {
    "anyres": _anyres,
    "bounded": _bounded,
    "budget": _budget,
    "canvas": _canvas,
    "cropped": _cropped,
    "frames": _framed,
    "grown": _grown,
    "panned": _panned,
    "split": _split,
    "square": _square,
    "tiled": _tiled,
    "whole": _whole,
}


def refused(why: str, fix: str | None = None) -> InvalidRequestError:
    """Return the error for an image that cannot be read."""
    return InvalidRequestError(f"The image cannot be read: {why}.", fix=fix, param=PARAM)
