"""A mixture of experts: their choice, rows sorted by expert, products of tiles of one expert."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.core.dtypes import DType
from quire.core.layers import RouteSpec
from quire.ops.torch_ops import moe as plain
from quire.ops.torch_ops.arrays import torch_dtype
from quire.ops.triton.kernels import experts as kernels
from quire.ops.triton.kernels.products import combine
from quire.ops.triton.launch import overlap, power_of_two
from quire.ops.triton.linear import Grouping, grouped_rows, product
from quire.ops.triton.weights import device_weight
from quire.ops.weights import LinearWeight

MOST_EXPERTS = 1024
"""One warp chooses among them: each of its threads has 32."""
PAIRS = 1024
"""Pairs that are counted at once."""


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
    combine[(rows, -(-out.shape[1] // block))](
        parts, weights, out, out.shape[1], top_k, weighted=not weight_on_input, block=block,
        enable_fp_fusion=False, **overlap(x.device),
    )  # fmt: skip
    return out


def route(
    logits: Tensor, bias: Tensor | None, spec: RouteSpec, factors: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See `torch_ops.moe.route`; equal experts are ordered by their numbers."""
    count = logits.shape[1]
    spec.check(count)
    if spec.band or count > MOST_EXPERTS:
        return plain.route(logits, bias, spec, factors)
    shape = len(logits), spec.top_k
    experts = torch.empty(shape, dtype=torch.int64, device=logits.device)
    weights = torch.empty(shape, dtype=torch.float32, device=logits.device)
    if len(logits):
        kernels.route[(len(logits),)](
            logits, bias, factors, experts, weights, logits.stride(0),
            *map(float, (spec.epsilon, spec.least, spec.scale)),
            count=count, top_k=spec.top_k, sigmoid=spec.scores == "sigmoid",
            by_logits=spec.by_logits, renormalize=spec.renormalize, groups=spec.num_groups,
            top_groups=spec.top_groups, best=1 if spec.group_score == "max" else 2,
            block_groups=power_of_two(spec.num_groups),
            block_size=power_of_two(count // spec.num_groups), block_k=power_of_two(spec.top_k),
            num_warps=1, enable_fp_fusion=False, **overlap(logits.device),
        )  # fmt: skip
    return experts, weights


def grouped(experts: Tensor, count: int, size: int) -> Grouping:
    """Return the pairs of rows and chosen experts, int64 [T, top_k], in tiles of one expert each.

    Args:
        count: of experts.
        size: of a tile.

    Nothing is read back: there are as many tiles as there could be, and the last ones are empty.
    """
    flat = experts.flatten().contiguous()  # a column is flat already, with gaps
    pairs = len(flat)
    tiles = min(pairs, count) + pairs // size
    row_ids = torch.empty(tiles * size, dtype=torch.int32, device=flat.device)
    tile_experts = torch.empty(tiles, dtype=torch.int32, device=flat.device)
    kernels.group[(count + 1,)](
        flat, row_ids, tile_experts, pairs, count, tiles, size=size,
        block_experts=max(power_of_two(count), 32), block=min(max(power_of_two(pairs), 128), PAIRS),
        **overlap(flat.device),
    )  # fmt: skip
    return Grouping(size, row_ids, tile_experts, 1, pairs)
