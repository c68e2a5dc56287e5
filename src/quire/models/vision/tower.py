"""The tower: pixels of one image → rows of the text model."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from quire.core.dtypes import FLOAT32, DType, HostArray, converted
from quire.core.images import ImageConfig, ImageSpan, VisionConfig
from quire.layers.linear import Linear
from quire.layers.norm import LayerNorm, Norm, RMSNorm
from quire.models.builder import Builder
from quire.models.decoder import Decoder
from quire.models.parameters import ParameterSource
from quire.models.vision.attention_pool import AttentionPool
from quire.models.vision.layer_scale import Scaled
from quire.models.vision.layout import connector, deep_connectors, tower_model
from quire.models.vision.pieces import bounds_of, layers_in_pieces, rows_at_once
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.op_times import TimedOps

Pieces = Generator[None, None, HostArray]
_IN_CACHE = 256
"""Patches whose pixels are normalized at once, so that they stay in a core's cache."""


class Tower:
    """Reads one image at a time: its rows depend on nothing else.

    Attributes:
        meter: of its ops.

    Args:
        source: asked for one parameter at a time.
        ops: pack the weights, none of which is quantized.
    """

    def __init__(
        self, vision: VisionConfig, images: ImageConfig, source: ParameterSource, ops: Ops
    ) -> None:
        self.vision = vision
        self._images = images
        modules = dict[int, str]()
        self.meter = TimedOps(ops, modules)
        self._ops = self.meter.timing  # a recording may begin and end inside an image
        self._modules = modules
        self._dtype = source.dtype
        model = tower_model(vision)
        build = Builder(model, source, 1, ops)
        bias = source.tensor("patch.bias") if vision.patch_bias else None
        patch = source.tensor("patch.weight").reshape(vision.hidden_size, vision.patch_values)
        self._patch = ops.pack_linear(patch, bias, exact=True, dtype=source.dtype)
        self._class = None
        if vision.class_token:
            self._class = source.tensor("class.weight").reshape(vision.hidden_size)
        self._positions = None
        if vision.learned_positions:
            positions = converted(source.tensor("positions.weight"), FLOAT32)
            self._positions = positions.reshape(-1, vision.hidden_size)
        self._decoder = Decoder(model, Scaled(source) if vision.layer_scale else source, 1, ops)
        self._connector_norm = _connector_norm(vision, source, ops)
        self._connector = [build.linear(linear) for linear in connector(vision)]
        self._pool = None
        if vision.pool == "attention":
            norm = _layer_norm("pool.norm", source, ops, vision.norm_eps)
            self._pool = AttentionPool(vision, source, ops, build, norm)
        self._newline = source.tensor("newline.weight") if vision.resolutions else None
        self._deep = [
            (
                _layer_norm(f"deep.{i}.norm", source, ops, vision.norm_eps),
                [build.linear(linear) for linear in linears],
            )
            for i, linears in enumerate(deep_connectors(vision))
        ]
        known = self._decoder.modules([]) | build.modules | {id(self._patch): "patch"}
        modules |= {weight: f"tower.{module}" for weight, module in known.items()}

    def read(self, image: ImageSpan, *, in_pieces: bool = False) -> Pieces:
        """Compute an image's rows; yield after each piece, or seldom if not `in_pieces`.

        Returns:
            [rows, hidden · (1 + deep layers)] in the model's dtype. Those of each deep layer lie
            behind the row that the text model begins with. Rows of line ends are 0.
        """
        read = self._read if image.tiling is None else self._read_tiles
        found = yield from read(image, in_pieces)
        if image.line:
            found = _with_ends(found, image.line)
        assert len(found) == image.rows, "the image has another number of rows"
        return found

    def given(self, image: ImageSpan) -> HostArray:
        """Return the rows that a client sent, in the model's dtype."""
        rows = np.frombuffer(image.pixels, np.float32).reshape(image.rows, -1)
        return converted(rows, self._dtype)

    def _read_tiles(self, image: ImageSpan, in_pieces: bool) -> Pieces:
        """Return the rows of the whole image, then line by line those of its tiles."""
        assert image.tiling is not None, "the image is one tile"
        assert self._newline is not None, "the model reads no tiles"
        down, across, lines, columns = image.tiling
        side = image.size[1]
        size = 3 * side * side
        found = list[HostArray]()
        for first in range(0, len(image.pixels), size):
            pixels = image.pixels[first : first + size]
            tile = replace(image, size=(side, side), pixels=pixels)
            found.append((yield from self._read(tile, in_pieces)))
        whole, *tiles = found
        edge = side // self.vision.patch_size
        grid = np.stack(tiles).reshape(down, across, edge, edge, -1).transpose(0, 2, 1, 3, 4)
        plane = grid.reshape(down * edge, across * edge, -1)
        top, left = (down * edge - lines) // 2, (across * edge - columns) // 2
        plane = plane[top : top + lines, left : left + columns]
        ends = np.broadcast_to(self._newline, (lines, 1, len(self._newline)))
        rows = np.concatenate([plane, ends.astype(plane.dtype)], axis=1)
        return np.concatenate([whole, rows.reshape(-1, rows.shape[2])])

    def _read(self, image: ImageSpan, in_pieces: bool) -> Pieces:
        vision = self.vision
        height, width = (side // vision.patch_size for side in image.size)
        grid = _grid(height, width, vision.merge)
        size = rows_at_once(vision, len(grid)) if in_pieces else len(grid)
        x = yield from self._enter(image, grid, size)
        windows = _windows(grid, vision) if vision.window else []
        order = np.concatenate(windows) if windows else slice(None)
        lengths = [len(window) for window in windows]
        rows, deep = yield from layers_in_pieces(
            self._ops,
            self._decoder,
            x[order],
            bounds_of(len(x), size, lengths),
            lengths,
            self._rotations(grid[order]),
            vision.deep_layers,
            self._modules,
        )
        if self._pool is not None:
            rows = self._pool.forward(rows)
        elif vision.pool == "class":
            rows = rows[:1]
        else:
            rows = rows[int(vision.class_token) :]
        if windows:
            restored = np.empty_like(rows)
            restored[order] = rows
            rows = restored
        if vision.pooled:
            squares = converted(rows, FLOAT32).reshape(-1, vision.merge**2, vision.hidden_size)
            rows = converted(squares.mean(axis=1), self._dtype)
        found = []
        for norm, linears, stream in zip(
            [self._connector_norm, *(norm for norm, _ in self._deep)],
            [self._connector, *(linears for _, linears in self._deep)],
            [rows, *deep],
            strict=True,
        ):
            found.append((yield from self._connected(norm, linears, stream, size)))
        return np.concatenate(found, axis=1)

    def _enter(self, image: ImageSpan, grid: NDArray[np.int64], size: int) -> Pieces:
        """Return the patches with their learned positions, and the class row before them."""
        vision, ops = self.vision, self._ops
        line = vision.patch_size * vision.merge  # pixels; its patches follow each other
        patches = line * image.size[1] // vision.patch_size**2
        lines = max(1, size // patches)
        found = list[HostArray]()
        if self._class is not None:
            found.append(self._placed(self._class[None], np.zeros(1, np.int64)))
        for first in range(0, image.size[0], lines * line):
            last = min(first + lines * line, image.size[0])
            part = slice(first // line * patches, last // line * patches)
            x = patches_of(image, vision, self._images, first, last, self._dtype)
            x = ops.numpy(ops.linear(ops.array(x), self._patch))
            found.append(self._positioned(x, grid[part], image.size))
            yield
        return np.concatenate(found)

    def _connected(
        self, norm: Norm | None, linears: list[Linear], rows: HostArray, size: int
    ) -> Pieces:
        """Return what the products behind the layers make of these rows."""
        ops, vision = self._ops, self.vision
        if vision.by_channel:
            rows = rows.reshape(-1, vision.row_patches, vision.hidden_size).swapaxes(1, 2)
        rows = np.ascontiguousarray(rows).reshape(-1, vision.hidden_size * vision.row_patches)
        found = list[HostArray]()
        size = max(1, size // vision.row_patches)
        for first in range(0, len(rows), size):
            y = ops.array(rows[first : first + size])
            if norm is not None:
                y = norm.forward(ops, y)
            for linear in linears:
                y = linear.forward(ops, y)
            found.append(np.array(ops.numpy(y)))
            yield
        return np.concatenate(found)

    def _positioned(
        self, x: HostArray, grid: NDArray[np.int64], size: tuple[int, int]
    ) -> HostArray:
        """Return patches with their learned positions, if there are some."""
        vision = self.vision
        if self._positions is None:
            return x
        height, width = (side // vision.patch_size for side in size)
        side = vision.image_size // vision.patch_size
        if vision.interpolated:
            places = _interpolated(self._positions, grid, (height, width), side)
            return converted(converted(x, FLOAT32) + converted(places, FLOAT32), self._dtype)
        found = _bucket(grid[:, 0], height, side) * side + _bucket(grid[:, 1], width, side)
        return self._placed(x, found + int(vision.class_token))

    def _placed(self, x: HostArray, places: NDArray[np.int64]) -> HostArray:
        """Return rows with the learned positions of these numbers."""
        if self._positions is None:
            return x
        return converted(converted(x, FLOAT32) + self._positions[places], self._dtype)

    def _rotations(self, grid: NDArray[np.int64]) -> Array | None:
        """Return the rotations by height and width, float32 [patches, head_dim]."""
        if not self.vision.rope_theta:
            return None
        half = self.vision.hidden_size // self.vision.num_heads // 2
        exponents = np.arange(0, half, 2, dtype=np.float32) / np.float32(half)
        if self.vision.alternate:
            exponents = np.stack([exponents, exponents + np.float32(1 / half)])
        frequencies = np.float32(1) / np.float32(self.vision.rope_theta) ** exponents
        angles = (grid[:, :, None].astype(np.float32) * frequencies).reshape(len(grid), half)
        wide = angles.astype(np.float64)
        table = np.concatenate([np.cos(wide), np.sin(wide)], axis=1).astype(np.float32)
        return self._ops.array(table)


def _with_ends(rows: HostArray, line: int) -> HostArray:
    """Return lines of rows with a row of zeros between them, so that each has `line` rows."""
    lines = rows.reshape(-1, line - 1, rows.shape[1])
    found = np.zeros((len(lines), line, rows.shape[1]), rows.dtype)
    found[:, :-1] = lines
    return found.reshape(-1, rows.shape[1])[:-1]


def _layer_norm(stem: str, source: ParameterSource, ops: Ops, eps: float) -> LayerNorm:
    weight, bias = (ops.array(source.tensor(f"{stem}.{kind}")) for kind in ("weight", "bias"))
    return LayerNorm(weight, bias, eps)


def _connector_norm(
    vision: VisionConfig, source: ParameterSource, ops: Ops
) -> RMSNorm | LayerNorm | None:
    """Return the norm before the products behind the layers; None without one."""
    if vision.connector_norm == "layer":
        eps = vision.norm_eps if vision.pool else 1e-5
        return _layer_norm("connector_norm", source, ops, eps)
    if vision.connector_norm is None:
        return None
    gain = converted(source.tensor("connector_norm.weight"), FLOAT32) + np.float32(1)
    return RMSNorm(ops.array(gain), vision.norm_eps)


def patches_of(
    image: ImageSpan,
    vision: VisionConfig,
    config: ImageConfig,
    first: int = 0,
    last: int | None = None,
    dtype: DType = FLOAT32,
) -> HostArray:
    """Return the normalized patches of pixel lines [first, last) of an image.

    [patches, 3 · frames · patch_size²]. The patches of one row of the text model follow each other.
    """
    pixels = np.frombuffer(image.pixels, np.uint8).reshape(*image.size, 3)[first:last]
    mean, std = (np.array(each, np.float32)[:, None] for each in (config.mean, config.std))
    side, merge = vision.patch_size, vision.merge
    height, width = (n // (side * merge) for n in pixels.shape[:2])
    squares = pixels.reshape(height, merge, side, width, merge, side, 3)
    parts = np.ascontiguousarray(squares.transpose(0, 3, 1, 4, 6, 2, 5))  # while they are bytes
    parts = parts.reshape(-1, 3, side * side)
    found = np.empty((len(parts), 3, vision.frames, side * side), dtype)
    for begin in range(0, len(parts), _IN_CACHE):
        values = parts[begin : begin + _IN_CACHE].astype(np.float32)
        values *= np.float32(1 / 255)
        values -= mean
        values /= std
        found[begin : begin + _IN_CACHE] = converted(values, dtype)[:, :, None]
    return found.reshape(-1, vision.patch_values)


def _grid(height: int, width: int, merge: int) -> NDArray[np.int64]:
    """Return row and column of each patch, in the order of `patches_of`."""
    places = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), axis=-1)
    parts = places.reshape(height // merge, merge, width // merge, merge, 2)
    return parts.transpose(0, 2, 1, 3, 4).reshape(-1, 2)


def _bucket(index: NDArray[np.int64], count: int, side: int) -> NDArray[np.int64]:
    """Return the learned positions along one axis of `count` patches."""
    if count == side:
        return index
    bounds = np.arange(1, side) / side
    return np.searchsorted(bounds.astype(np.float32), index / count, side="right")


def _interpolated(
    table: NDArray[np.float32], grid: NDArray[np.int64], size: tuple[int, int], side: int
) -> NDArray[np.float32]:
    """Return learned positions between those of a square of `side` rows, corner on corner."""
    sides = np.array(size)
    at = (
        grid.astype(np.float32) * np.float32(side - 1) / np.maximum(sides - 1, 1).astype(np.float32)
    )
    low = np.floor(at).astype(np.int64)
    part = at - low
    total = np.zeros((len(grid), table.shape[1]), np.float32)
    for down in (0, 1):
        for right in (0, 1):
            row, column = np.minimum(low + np.array([down, right]), side - 1).T
            weight = np.abs(1 - down - part[:, 0]) * np.abs(1 - right - part[:, 1])
            total += weight[:, None] * table[row * side + column]
    return total


def _windows(grid: NDArray[np.int64], vision: VisionConfig) -> list[NDArray[np.int64]]:
    """Return the patches of each window, which is a square from the image's top left corner on."""
    side = vision.window // vision.merge // vision.patch_size * vision.merge
    window = grid // side
    number = window[:, 0] * (window[:, 1].max() + 1) + window[:, 1]
    return [np.flatnonzero(number == each) for each in range(int(number.max()) + 1)]
