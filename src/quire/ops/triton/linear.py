"""Products: of layers, of experts, and of heads."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.core.dtypes import DType
from quire.core.quantization import DECODED_ROWS
from quire.ops.torch_ops.arrays import torch_dtype
from quire.ops.torch_ops.reference import DenseWeight
from quire.ops.triton import launch
from quire.ops.triton.kernels import experts as lists
from quire.ops.triton.kernels import products as kernels
from quire.ops.triton.launch import (
    COMPUTE,
    COUNTERS,
    counters,
    overlap,
    power_of_two,
    processors,
    stages,
)  # fmt: skip
from quire.ops.triton.rows import UNGATED, codes_of
from quire.ops.triton.tuning import TileTuning
from quire.ops.triton.tuning import chosen as chosen_sizes
from quire.ops.triton.weights import CODED_ROWS, CodedWeight, DeviceWeight, device_weight
from quire.ops.tuning import Shape
from quire.ops.weights import GATED, LinearWeight

AHEAD_BYTES = 1 << 24
"""Bytes of a weight that the second-level cache reads while the kernel before is running."""
PROGRAMS = 264
"""Programs that a product of few rows is cut into, if its weight is large enough."""
LEAST_SEGMENT = 512


class Grouping(NamedTuple):
    """Which rows of a result each tile computes, and with which expert.

    Attributes:
        tile: rows of a tile.
        row_ids: int32 [tiles · tile]; -1 for none.
        tile_experts: int32 [tiles].
        fan_out: result row r is of row r // fan_out of x.
        rows: of the result.
    """

    tile: int
    row_ids: Tensor
    tile_experts: Tensor
    fan_out: int
    rows: int


class Tile(NamedTuple):
    """What one program computes: `rows` of x times `columns` of the result, `depth` at a time.

    The weight is the left operand, whose tiles have at least 64 rows.

    Attributes:
        early: tiles of the weight that are read before the kernel before has ended.
        waves: with fewer programs per processor, each segment has a program of its own.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    early: int
    waves: int = 2

    def tuned(self, sizes: TileTuning) -> Tile:
        """Return the tile with these sizes; 0 keeps its own."""
        found = self._replace(
            rows=sizes.rows or self.rows, columns=sizes.columns or self.columns,
            warps=sizes.warps or self.warps, stages=sizes.stages or self.stages,
        )  # fmt: skip
        early = max(sizes.early, 0) if sizes.early else self.early
        return found._replace(early=early, waves=max(sizes.waves, 0) if sizes.waves else self.waves)


def tile(rows: int, compute: torch.dtype) -> Tile:
    """Return the tile for so many rows. Its choice changes no bit."""
    if compute == torch.float32:
        return Tile(16 if rows <= 16 else 64, 64, 32, 4, 2, 1)
    if rows <= 64:
        return Tile(max(16, power_of_two(rows)), 128, 128, 8, 3, 2)
    depth = 128 if compute.itemsize == 1 else 64  # bits of 8-bit floats depend on it
    return Tile(128, 128, depth, 8, 4, 0)


def grouped_rows(rows: int, compute: torch.dtype) -> int:
    """Return the rows of a tile if each expert has about so many rows."""
    return tile(rows, compute).rows


def segment(columns: int, width: int) -> int:
    """Return the columns of x that are summed by themselves, for a weight [columns, width].

    It depends on the weight alone, for the sums' bits do.
    """
    blocks = -(-columns // 64)
    parts = min(max(PROGRAMS // blocks, 1), max(width // LEAST_SEGMENT, 1))
    return -(-width // (parts * 128)) * 128


def linear(x: Tensor, packed: LinearWeight, dtype: DType | None = None) -> Tensor:
    """See `reference.linear`."""
    wanted = x.dtype if dtype is None else torch_dtype(dtype)
    return product(x, device_weight(packed), wanted)


def logits(x: Tensor, packed: LinearWeight) -> Tensor:
    """See `reference.logits`."""
    weight = device_weight(packed)
    assert weight.epilogue == "none"
    return product(x, weight, torch.float32)


def product(
    x: Tensor, weight: DeviceWeight, dtype: torch.dtype, grouping: Grouping | None = None
) -> Tensor:
    """Return epilogue(x @ weight.T + bias) as [rows, out] of `dtype`.

    Args:
        grouping: each row is multiplied with its expert's rows.
    """
    columns = weight.shape[0] // (weight.experts if grouping else 1)
    kind, gated = weight.epilogue, weight.epilogue in GATED
    rows = grouping.rows if grouping else len(x)
    out = torch.empty((rows, columns // (1 + gated)), dtype=dtype, device=x.device)
    if rows == 0:
        return out
    middle = x.dtype
    x, x_scale, factor = _operands(x, weight)
    if x_scale is None and grouping is None and rows >= DECODED_ROWS:
        weight = dequantized(weight, x.dtype)
    given, bias, width = _form(weight), weight.bias, weight.shape[1]
    chosen = _tile(weight, x, middle, rows, grouping)
    depth = 128 if given.halves else chosen.depth
    length = segment(columns, width)
    segments = -(-width // length)
    decodes = given.form not in ("dense", *CODED_ROWS)
    made = depth * chosen.columns * x.element_size() * decodes
    loaded = depth * chosen.rows * x.element_size() + chosen.columns * given.nbytes(depth)
    tiles_m = len(grouping.tile_experts) if grouping else -(-rows // chosen.rows)
    tiles = tiles_m * -(-columns // chosen.columns)
    split = grouping is None and segments > 1 and tiles < chosen.waves * processors(x.device)
    split = split and tiles <= COUNTERS
    early = chosen.early if grouping is None and (split or segments == 1) else 0
    early = min(early, (width - (segments - 1) * length if split else width) // depth)
    at_once = min(tiles * (segments if split else 1), 2 * max(processors(x.device), 1))
    left = given.nbytes(min(length, width) - early * depth) if early else 0
    ahead = _lines(min(AHEAD_BYTES // (at_once * chosen.columns), left))
    parts = None
    if split:
        sums = torch.int32 if given.form == "int8" else torch.float32
        parts = torch.empty((segments, rows, columns), dtype=sums, device=x.device)
    kernels.product[(tiles, segments if split else 1)](
        x, *given.tensors, bias, x_scale, factor, out, parts, counters(x.device) if split else None,
        grouping.row_ids if grouping else None, grouping.tile_experts if grouping else None,
        rows, columns, width, given.stride, given.groups, weight.shape[0], x.stride(0),
        grouping.fan_out if grouping else 1, tiles_m,
        form=given.of(x), group=given.group, halves=given.halves, biased=bias is not None,
        listed=grouping is not None, kind=UNGATED.get(kind, kind), gated=gated, segment=length,
        segments=segments, split=split, even=width % depth == 0,
        early=early, ahead=ahead,
        block_m=chosen.rows, block_n=chosen.columns, block_k=depth,
        compute=COMPUTE[x.dtype], middle=COMPUTE[middle], num_warps=chosen.warps,
        num_stages=stages(x.device, chosen.stages, loaded, made),
        enable_fp_fusion=False, **launch.card(x.device).options, **overlap(x.device),
    )  # fmt: skip
    return out


def _operands(x: Tensor, weight: DeviceWeight) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return rows as a weight multiplies them, their scales, and those of the weight's rows."""
    if not isinstance(weight, CodedWeight):
        return x if x.stride(-1) == 1 else x.contiguous(), None, None
    if weight.columns is not None:
        x = x[:, weight.columns]
    elif x.stride(-1) != 1:
        x = x.contiguous()
    if weight.form in CODED_ROWS:
        return *codes_of(x, CODED_ROWS[weight.form]), weight.scale
    return x, None, weight.factor


def tuned_shape(
    weight: DeviceWeight, dtype: torch.dtype, rows: int, *, experts: bool = False
) -> Shape:
    """Return for what `quire tune kernels` tunes products of so many rows of `dtype`.

    Args:
        experts: tiles of `rows` rows have an expert's weight each.
    """
    given, (columns, width), group = _form(weight), weight.shape, 1
    name = str(dtype).removeprefix("torch.")
    kind = f"dense.{name}"
    coded = experts or rows < DECODED_ROWS
    if isinstance(weight, CodedWeight) and (weight.form in CODED_ROWS or coded):
        stored = "uint4" if given.halves else str(weight.codes.dtype).removeprefix("torch.")
        kind, group = f"{given.form}.{stored}.{name}", given.group
    if experts:
        kind, columns = f"experts.{kind}", columns // weight.experts
    return "gemm", kind, columns, width, group


def _tile(
    weight: DeviceWeight, x: Tensor, dtype: torch.dtype, rows: int, grouping: Grouping | None
) -> Tile:
    """Return the tile for so many rows, with the sizes that were tuned for the weight.

    Args:
        dtype: of the rows before they are quantized.
    """
    rows = grouping.tile if grouping else rows
    own, sizes = tile(rows, x.dtype), chosen_sizes(x.device)
    if not sizes.has_tiles:
        return own
    shape = tuned_shape(weight, dtype, rows, experts=grouping is not None)
    found = own.tuned(sizes.tile(shape, rows))
    return found._replace(rows=own.rows) if grouping else found


def _lines(nbytes: int) -> int:
    """Return the largest power of two of lines of 128 bytes in so many bytes; or 0."""
    return 1 << (nbytes // 128).bit_length() - 1 if nbytes >= 128 else 0


def dequantized(weight: DeviceWeight, dtype: torch.dtype) -> DenseWeight:
    """Return the weight as numbers of `dtype`, which a product would make of its codes itself."""
    if not isinstance(weight, CodedWeight):
        return weight
    given, (columns, width) = _form(weight), weight.shape
    numbers = torch.empty((columns, width), dtype=dtype, device=weight.codes.device)
    kernels.dequantize[(-(-columns // 64), -(-width // 128))](
        *given.tensors, numbers, columns, width, given.stride, given.groups, columns,
        form=given.of(numbers), group=given.group,
        halves=given.halves, even=width % 128 == 0, block_n=64, block_k=128,
        enable_fp_fusion=False, **overlap(numbers.device),
    )  # fmt: skip
    return DenseWeight(numbers, weight.bias, weight.epilogue, weight.experts)


class _Given(NamedTuple):
    """A weight as the kernels take it; `tensors`: w, scale, zero, offset, book."""

    tensors: tuple[Tensor | None, ...]
    form: str
    group: int
    groups: int
    halves: bool
    stride: int

    def of(self, x: Tensor) -> str:
        """Return the form for products with x: codes in pairs if the card can."""
        _, scale, zero, _, _ = self.tensors
        if not (self.form in ("zeros", "e2m1") and self.halves and launch.card(x.device).pairs):
            return self.form
        assert scale is not None
        small = scale.element_size() == x.element_size() == 2
        # What a 16-bit scale has beyond bfloat16 is split off; float16 cannot hold bfloat16's.
        holds = scale.dtype in (x.dtype, torch.float16)
        whole = zero is None or zero.dtype == torch.uint8
        return f"paired {self.form}" if small and holds and whole else self.form

    def nbytes(self, columns: int) -> int:
        """Return the bytes of so many columns of a row."""
        codes = self.tensors[0]
        assert codes is not None
        return columns * codes.element_size() >> self.halves


def _form(weight: DeviceWeight) -> _Given:
    if not isinstance(weight, CodedWeight):
        dense = weight.weight
        return _Given((dense, None, None, None, None), "dense", 1, 1, False, dense.shape[1])
    numbers: list[Any] = [
        weight.numbers if weight.form == form else None for form in ("zeros", "offsets", "book")
    ]
    groups = len(weight.scale)
    return _Given(
        (weight.codes, weight.scale, *numbers),
        weight.form, 0 if groups == 1 else weight.group, groups, weight.halves,
        weight.codes.shape[1],
    )  # fmt: skip


def head_linear(x: Tensor, packed: LinearWeight, first: int = 0) -> Tensor:
    """See `torch_ops.latent.head_linear`: heads are experts that each token has all of."""
    weight = device_weight(packed)
    tokens, heads = x.shape[:2]
    rows = x[..., first : first + weight.shape[1]].reshape(tokens * heads, -1)
    size = grouped_rows(tokens, x.dtype)
    tiles = -(-tokens // size)
    ids = torch.empty(heads * tiles * size, dtype=torch.int32, device=x.device)
    head = torch.empty(heads * tiles, dtype=torch.int32, device=x.device)
    if tokens:
        lists.heads[(heads,)](
            ids, head, tokens, tiles, size=size, block=256, **overlap(x.device)
        )  # fmt: skip
    grouping = Grouping(size, ids, head, 1, tokens * heads)
    return product(rows, weight, x.dtype, grouping).view(tokens, heads, -1)
