"""Pixels in memory: resized, and cut into parts."""

from __future__ import annotations

from quire.ops.native.pixels import resize
from quire.system.records import dataclass

_FILTERS = (1, 2, 3)
"""Pillow's numbers of the filters that are resized without it, at several times its speed."""

Box = tuple[int, int, int, int]
"""Left, top, right, bottom."""


@dataclass(frozen=True, slots=True)
class Raster:
    """An image: lines of pixels of three bytes."""

    width: int
    height: int
    pixels: bytes

    @property
    def size(self) -> tuple[int, int]:
        return self.width, self.height

    def resize(self, size: tuple[int, int], resample: int) -> Raster:
        """Return the image in another width and height, with the pixels of Pillow."""
        if size == self.size:
            return self
        if resample in _FILTERS:
            return Raster(*size, resize(self.pixels, self.size, resample, size))
        from PIL import Image

        image = Image.frombytes("RGB", self.size, self.pixels).resize(size, resample)
        return Raster(*size, image.tobytes())

    def crop(self, box: Box) -> Raster:
        """Return a part of the image, black where the box is larger."""
        left, top, right, bottom = box
        first, last = max(left, 0), min(right, self.width)
        before, behind = bytes(3 * (first - left)), bytes(3 * (right - last))
        nothing = bytes(3 * (right - left))
        pixels = memoryview(self.pixels)
        parts = list[bytes | memoryview]()
        for y in range(top, bottom):
            if not (0 <= y < self.height and first < last):
                parts.append(nothing)
                continue
            line = 3 * y * self.width
            parts += (before, pixels[line + 3 * first : line + 3 * last], behind)
        return Raster(right - left, bottom - top, b"".join(parts))
