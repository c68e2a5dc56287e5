"""The tower: pixels of one image → rows of the text model."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from msgspec.structs import replace

from quire.core.dtypes import FLOAT32, DType, HostArray, converted
from quire.core.images import ImageConfig, ImageSpan, VisionConfig
from quire.models.builder import Builder
from quire.models.decoder import Decoder
from quire.models.parameters import ParameterSource
from quire.models.vision.attention_pool import AttentionPool
from quire.models.vision.clipped import clip
from quire.models.vision.connector import Connector, layer_norm
from quire.models.vision.grids import Floats, Grid, grid_of, learned, turned, windows_of
from quire.models.vision.layout import connectors, patch_norm, tower_model
from quire.models.vision.pieces import bounds_of, layers_in_pieces, rows_at_once
from quire.models.vision.prepared import Prepared
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
        if vision.channels_last:
            pixels = patch.reshape(vision.hidden_size, -1, 3)
            patch = np.ascontiguousarray(pixels.swapaxes(1, 2)).reshape(patch.shape)
        self._patch = ops.pack_linear(patch, bias, exact=True, dtype=source.dtype)
        self._patch_norm = build.norm(patch_norm(vision) if vision.patch_norm else None)
        self._positions, first = self._learned(source)
        self._class = None
        if vision.class_token:
            row = converted(source.tensor("class.weight").reshape(1, -1), FLOAT32)
            self._class = converted(row + first, source.dtype)
        prepared = Prepared(source, vision)
        self._decoder = Decoder(model, prepared, 1, ops)
        for number, layer in enumerate(self._decoder.layers if vision.clipped else ()):
            clip(layer, number, model.activation, prepared, ops)
        self._standard = None
        if vision.standardized:
            names = ("pooled.shift.weight", "pooled.scale.weight")
            self._standard = [converted(source.tensor(name), FLOAT32) for name in names]
        self._pool = None
        if vision.pool == "attention":
            norm = layer_norm("pool.norm", source, ops, vision.norm_eps)
            self._pool = AttentionPool(vision, source, ops, build, norm)
        self._newline = source.tensor("newline.weight") if vision.resolutions else None
        self._connectors = [
            Connector(vision, stem, wanted, source, self._ops, build)
            for stem, wanted in connectors(vision).items()
        ]
        known = self._decoder.modules([]) | build.modules | {id(self._patch): "patch"}
        modules |= {weight: f"tower.{module}" for weight, module in known.items()}

    def _learned(self, source: ParameterSource) -> tuple[Floats | None, Floats]:
        """Return the learned positions of patches, and what is added to the class row."""
        vision = self.vision
        if not vision.learned_positions:
            return None, np.zeros(1, np.float32)
        found = converted(source.tensor("positions.weight"), FLOAT32)
        found = found.reshape(-1, vision.hidden_size)
        return found[int(vision.class_token) :], found[:1]

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
        grid = grid_of(height, width, vision.merge)
        size = rows_at_once(vision, len(grid)) if in_pieces else len(grid)
        x = yield from self._enter(image, grid, size)
        windows = windows_of(grid, vision) if vision.window else []
        order = np.concatenate(windows) if windows else slice(None)
        lengths = [len(window) for window in windows]
        rows, deep = yield from layers_in_pieces(
            self._ops,
            self._decoder,
            x[order],
            bounds_of(len(x), size, lengths),
            lengths,
            self._ops.array(turned(grid[order], vision)) if vision.rope_theta else None,
            vision.feature_layers or vision.deep_layers,
            self._modules,
        )
        if vision.feature_layers:
            rows, deep = np.concatenate(deep, axis=1), []
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
            rows = self._standardized(converted(squares.mean(axis=1), self._dtype))
        found = []
        for connector, stream in zip(self._connectors, [rows, *deep], strict=True):
            found.append((yield from self._connected(connector, stream, size)))
        return np.concatenate(found, axis=1)

    def _standardized(self, rows: HostArray) -> HostArray:
        """Return means of patches, scaled and shifted."""
        if self.vision.pool_factor == 1.0 and self._standard is None:
            return rows
        wide = converted(rows, FLOAT32) * np.float32(self.vision.pool_factor)
        if self._standard is not None:
            wide = (wide - self._standard[0]) * self._standard[1]
        return converted(wide, self._dtype)

    def _connected(self, connector: Connector, rows: HostArray, size: int) -> Pieces:
        """Return what the products behind the layers make of these rows."""
        rows, found = connector.side_by_side(rows), list[HostArray]()
        size = max(1, size // self.vision.row_patches)
        for first in range(0, len(rows), size):
            found.append(connector.forward(rows[first : first + size]))
            yield
        return np.concatenate(found)

    def _enter(self, image: ImageSpan, grid: Grid, size: int) -> Pieces:
        """Return the patches with their learned positions, and the class row before them."""
        vision, ops = self.vision, self._ops
        line = vision.patch_size * vision.merge  # pixels; its patches follow each other
        patches = line * image.size[1] // vision.patch_size**2
        lines = max(1, size // patches)
        whole = image.size[0] // vision.patch_size, image.size[1] // vision.patch_size
        found = list[HostArray]()
        if self._class is not None:
            found.append(self._class)
        for first in range(0, image.size[0], lines * line):
            last = min(first + lines * line, image.size[0])
            part = slice(first // line * patches, last // line * patches)
            x = patches_of(image, vision, self._images, first, last, self._dtype)
            y = self._patch_norm.forward(ops, ops.linear(ops.array(x), self._patch))
            x = ops.numpy(y)
            if self._positions is not None:
                places = learned(self._positions, grid[part], whole, vision)
                x = converted(converted(x, FLOAT32) + places, self._dtype)
            found.append(np.array(x))
            yield
        return np.concatenate(found)


def _with_ends(rows: HostArray, line: int) -> HostArray:
    """Return lines of rows with a row of zeros between them, so that each has `line` rows."""
    lines = rows.reshape(-1, line - 1, rows.shape[1])
    found = np.zeros((len(lines), line, rows.shape[1]), rows.dtype)
    found[:, :-1] = lines
    return found.reshape(-1, rows.shape[1])[:-1]


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
