"""A mixture of experts: rows sorted by expert, and products of tiles of one expert each."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.core.dtypes import DType
from quire.ops.torch_ops.arrays import torch_dtype
from quire.ops.triton.kernels import products as kernels
from quire.ops.triton.launch import overlap
from quire.ops.triton.linear import Grouping, grouped_rows, product
from quire.ops.triton.weights import device_weight
from quire.ops.weights import LinearWeight


def moe(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    gate_up: LinearWeight,
    down: LinearWeight,
    dtype: DType | None = None,
    weight_on_input: bool = False,
) -> Tensor:
    """See `torch_ops.moe.moe`."""
    first, second = device_weight(gate_up), device_weight(down)
    rows, top_k = experts.shape
    wanted = x.dtype if dtype is None else torch_dtype(dtype)
    out = torch.empty((rows, second.shape[0] // second.experts), dtype=wanted, device=x.device)
    if rows == 0:
        return out
    grouping = grouped(experts, first.experts, grouped_rows(rows * top_k // first.experts, x.dtype))
    if weight_on_input:
        x = (x.float()[:, None] * weights[..., None]).to(x.dtype).flatten(0, 1)
        between = product(x, first, x.dtype, grouping)
    else:
        between = product(x, first, x.dtype, grouping._replace(fan_out=top_k))
    parts = product(between, second, torch.float32, grouping)
    block = 1024
    kernels.combine[(rows, -(-out.shape[1] // block))](
        parts, weights, out, out.shape[1], top_k, weighted=not weight_on_input, block=block,
        enable_fp_fusion=False, **overlap(x.device),
    )  # fmt: skip
    return out


def grouped(experts: Tensor, count: int, size: int) -> Grouping:
    """Return the pairs of rows and chosen experts, int64 [T, top_k], in tiles of one expert each.

    Args:
        count: of experts.
        size: of a tile.

    Nothing is read back: there are as many tiles as there could be, and the last ones are empty.
    """
    flat = experts.flatten()
    pairs = len(flat)
    tiles = min(pairs, count) + pairs // size
    counts = torch.zeros(count, dtype=torch.int64, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    tiles_per_expert = (counts + size - 1) // size
    tile_ends = tiles_per_expert.cumsum(0)
    order = flat.argsort(stable=True)
    expert = flat[order]
    within = torch.arange(pairs, device=flat.device) - (counts.cumsum(0) - counts)[expert]
    place = (tile_ends - tiles_per_expert)[expert] * size + within
    row_ids = torch.full((tiles * size,), -1, dtype=torch.int32, device=flat.device)
    row_ids.scatter_(0, place, order.to(torch.int32))
    numbers = torch.arange(tiles, device=flat.device)
    tile_experts = torch.searchsorted(tile_ends, numbers, right=True).clamp(max=count - 1)
    return Grouping(size, row_ids, tile_experts.to(torch.int32), 1, pairs)
