"""Products: of layers, of experts, and of heads."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.core.dtypes import DType
from quire.ops.torch_ops.arrays import torch_dtype
from quire.ops.triton.kernels import products as kernels
from quire.ops.triton.launch import COMPUTE, power_of_two, processors, warps
from quire.ops.triton.rows import activation
from quire.ops.triton.weights import CodedWeight, DeviceWeight, device_weight
from quire.ops.weights import LinearWeight

SEGMENT = 1024
"""Columns that are summed by themselves."""
ROWS = 64
"""Rows of a tile: what the matrix units of a Hopper card multiply at once."""
COLUMNS = 64
DEPTH = 64


class Grouping(NamedTuple):
    """Which rows of a result each tile computes, and with which expert.

    Attributes:
        row_ids: int32 [tiles · ROWS]; -1 for none.
        tile_experts: int32 [tiles].
        fan_out: result row r is of row r // fan_out of x.
        rows: of the result.
    """

    row_ids: Tensor
    tile_experts: Tensor
    fan_out: int
    rows: int


def linear(x: Tensor, packed: LinearWeight, dtype: DType | None = None) -> Tensor:
    """See `reference.linear`."""
    weight = device_weight(packed)
    wanted = x.dtype if dtype is None else torch_dtype(dtype)
    if weight.epilogue == "none":
        return product(x, weight, wanted)
    return activation(product(x, weight, x.dtype), weight.epilogue).to(wanted)


def logits(x: Tensor, packed: LinearWeight) -> Tensor:
    """See `reference.logits`."""
    weight = device_weight(packed)
    assert weight.epilogue == "none"
    return product(x, weight, torch.float32)


def product(
    x: Tensor, weight: DeviceWeight, dtype: torch.dtype, grouping: Grouping | None = None
) -> Tensor:
    """Return x @ weight.T + bias as [rows, out] of `dtype`; each row with its expert's rows."""
    columns = weight.shape[0] // weight.experts if grouping else weight.shape[0]
    rows = grouping.rows if grouping else len(x)
    out = torch.empty((rows, columns), dtype=dtype, device=x.device)
    if rows == 0:
        return out
    if isinstance(weight, CodedWeight) and weight.columns is not None:
        x = x[:, weight.columns]
    elif x.stride(-1) != 1:
        x = x.contiguous()
    x_scale = None
    compute = COMPUTE[x.dtype]
    integer = isinstance(weight, CodedWeight) and weight.form == "int8"
    if integer:
        x, x_scale = quantize_rows(x)
    tiles = len(grouping.tile_experts) if grouping else -(-rows // ROWS)
    blocks = -(-columns // COLUMNS)
    width = weight.shape[1]
    segments = -(-width // SEGMENT)
    split = grouping is None and segments > 1 and tiles * blocks < 2 * processors(x.device)
    parts = None
    if split:
        kind = torch.int32 if integer else torch.float32
        parts = torch.empty((segments, rows, columns), dtype=kind, device=x.device)
    bias, given = weight.bias, _form(weight)
    kernels.product[(tiles, blocks, segments if split else 1)](
        x, *given.tensors, bias, x_scale, out, parts,
        grouping.row_ids if grouping else None, grouping.tile_experts if grouping else None,
        rows, columns, width, given.groups, x.stride(0), segments,
        grouping.fan_out if grouping else 1,
        form=given.form, group=given.group, halves=given.halves, biased=bias is not None,
        listed=grouping is not None, split=split, segment=SEGMENT, block_m=ROWS, block_n=COLUMNS,
        block_k=DEPTH, compute=compute, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    if split:
        block = min(1024, power_of_two(columns))
        kernels.add_segments[(rows, -(-columns // block))](
            parts, given.tensors[1], bias, x_scale, out, segments, rows, columns,
            integer=integer, biased=bias is not None, block=block, enable_fp_fusion=False,
        )  # fmt: skip
    return out


class _Given(NamedTuple):
    """A weight as the kernel takes it; `tensors`: w, scale, zero, offset, book."""

    tensors: tuple[Tensor | None, ...]
    form: str
    group: int
    groups: int
    halves: bool


def _form(weight: DeviceWeight) -> _Given:
    if not isinstance(weight, CodedWeight):
        return _Given((weight.weight, None, None, None, None), "dense", 1, 1, False)
    numbers: list[Any] = [
        weight.numbers if weight.form == form else None for form in ("zeros", "offsets", "book")
    ]
    return _Given(
        (weight.codes, weight.scale, *numbers),
        weight.form, weight.group, weight.scale.shape[1], weight.halves,
    )  # fmt: skip


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [T, K] as int8 and their scales, float32 [T]."""
    rows, width = x.shape
    out = torch.empty((rows, width), dtype=torch.int8, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    block = power_of_two(width)
    kernels.quantize_rows[(rows,)](
        x, out, scales, width, x.stride(0), block=block, num_warps=warps(block)
    )
    return out, scales


def head_linear(x: Tensor, packed: LinearWeight, first: int = 0) -> Tensor:
    """See `torch_ops.latent.head_linear`: heads are experts that each token has all of."""
    weight = device_weight(packed)
    tokens, heads = x.shape[:2]
    rows = x[..., first : first + weight.shape[1]].reshape(tokens * heads, -1)
    tiles = -(-tokens // ROWS)
    ids = torch.full((heads, tiles * ROWS), -1, dtype=torch.int32, device=x.device)
    numbers = torch.arange(tokens * heads, dtype=torch.int32, device=x.device)
    ids[:, :tokens] = numbers.view(tokens, heads).t()
    head = torch.arange(heads, dtype=torch.int32, device=x.device).repeat_interleave(tiles)
    grouping = Grouping(ids.flatten(), head, 1, tokens * heads)
    return product(rows, weight, x.dtype, grouping).view(tokens, heads, -1)
