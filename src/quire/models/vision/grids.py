"""Places of an image's patches: their order, learned positions, rotations and windows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.images import VisionConfig
from quire.models.vision.layout import head_dim

Grid = NDArray[np.int64]
"""Row and column of each patch [patches, 2]."""
Floats = NDArray[np.float32]


def grid_of(height: int, width: int, merge: int) -> Grid:
    """Return the patches in the order of `patches_of`: those of a row follow each other."""
    places = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), axis=-1)
    parts = places.reshape(height // merge, merge, width // merge, merge, 2)
    return parts.transpose(0, 2, 1, 3, 4).reshape(-1, 2)


def learned(table: Floats, grid: Grid, size: tuple[int, int], vision: VisionConfig) -> Floats:
    """Return the learned positions of patches, float32 [patches, hidden].

    Args:
        table: of a square of patches, line by line.
        size: patches in height and width of the image.
    """
    side = vision.image_size // vision.patch_size
    if vision.positions == "axes":
        return table[grid[:, 1]] + table[side + grid[:, 0]]
    taps = [_taps(vision.positions, count, side) for count in size]
    (down, down_weights), (right, right_weights) = (
        (at[index], weights[index]) for (at, weights), index in zip(taps, grid.T, strict=True)
    )
    total = np.zeros((len(grid), table.shape[1]), np.float32)
    for i in range(down.shape[1]):
        for j in range(right.shape[1]):
            weight = down_weights[:, i] * right_weights[:, j]
            total += weight[:, None] * table[down[:, i] * side + right[:, j]]
    return total


def _taps(kind: str, count: int, side: int) -> tuple[NDArray[np.int64], Floats]:
    """Return which of `side` positions make each of `count`, and with which weights; [count, n]."""
    index = np.arange(count, dtype=np.float32)
    if kind == "nearest":
        bounds = np.arange(1, side) / side
        found = np.searchsorted(bounds.astype(np.float32), index / count, side="right")
        places = np.arange(count) if count == side else found
        return places[:, None], np.ones((count, 1), np.float32)
    at: Floats
    if kind == "corners":
        at = index * np.float32(side - 1) / np.float32(max(count - 1, 1))
    else:
        at = (index + np.float32(0.5)) * np.float32(side) / np.float32(count) - np.float32(0.5)
    stretch = np.float32(max(1.0, side / count if kind == "smooth" else 1.0))
    reach = 2 if kind == "cubic" else int(np.ceil(stretch))
    low = np.floor(at)
    offsets = np.arange(1 - reach, 1 + reach)
    places = low[:, None].astype(np.int64) + offsets
    far = np.abs(at[:, None] - low[:, None] - offsets.astype(np.float32))
    weights = _keys(far) if kind == "cubic" else np.maximum(1 - far / stretch, np.float32(0))
    if kind == "smooth":
        weights *= (places >= 0) & (places < side)
        weights /= weights.sum(axis=1, keepdims=True)
    return places.clip(0, side - 1), weights.astype(np.float32)


def _keys(far: Floats) -> Floats:
    """Return Keys' cubic weights for distances of up to 2."""
    a = np.float32(-0.75)
    near = ((a + 2) * far - (a + 3)) * far * far + 1
    return np.where(far <= 1, near, ((a * far - 5 * a) * far + 8 * a) * far - 4 * a)


def turned(grid: Grid, vision: VisionConfig) -> Floats:
    """Return cosines and sines of the rotations by height and width [patches, head_dim]."""
    half = head_dim(vision) // 2
    grid = grid[:, ::-1] if vision.columns_first else grid
    exponents = np.arange(0, half, 2, dtype=np.float32) / np.float32(half)
    if vision.alternate:
        exponents = np.stack([exponents, exponents + np.float32(1 / half)])
    frequencies = np.float32(1) / np.float32(vision.rope_theta) ** exponents
    angles = (grid[:, :, None].astype(np.float32) * frequencies).reshape(len(grid), half)
    wide = angles.astype(np.float64)
    return np.concatenate([np.cos(wide), np.sin(wide)], axis=1).astype(np.float32)


def windows_of(grid: Grid, vision: VisionConfig) -> list[NDArray[np.int64]]:
    """Return the patches of each window, which is a square from the image's top left corner on."""
    side = vision.window // vision.merge // vision.patch_size * vision.merge
    window = grid // side
    number = window[:, 0] * (window[:, 1].max() + 1) + window[:, 1]
    return [np.flatnonzero(number == each) for each in range(int(number.max()) + 1)]
