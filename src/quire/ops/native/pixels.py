"""Images: lines of pixels of three bytes."""

from __future__ import annotations

from functools import cache

from quire import _native


def resize(
    pixels: bytes, size: tuple[int, int], resample: int, wanted: tuple[int, int], isa: str = ""
) -> bytes:
    """Return an image in another width and height, with the same pixels as Pillow.

    Args:
        resample: 1 (Lanczos), 2 (bilinear) or 3 (bicubic).
        isa: whose kernels; the most capable if empty.
    """
    return _native.resize(_kernels(isa), pixels, *size, resample, *wanted)


@cache
def _kernels(isa: str) -> _native.Kernels:
    return _native.table(isa or _native.detect()[-1])
