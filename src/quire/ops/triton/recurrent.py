"""Launches of recurrent layers."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from quire.ops.interface import ConvKind, GateKind
from quire.ops.metadata import AttentionMetadata
from quire.ops.triton import tables
from quire.ops.triton.kernels import recurrent as kernels
from quire.ops.triton.launch import power_of_two, warps

CHANNELS = 512
COLUMNS = 32
"""Columns of a state that one program owns: with 128 rows, 32 numbers for each of 128 threads."""


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    meta: AttentionMetadata[Tensor],
    kind: ConvKind,
    first: int = 0,
) -> Tensor:
    """See `torch_ops.recurrent.causal_conv1d`."""
    width, channels = weight.shape
    out = torch.empty((len(x), channels), dtype=x.dtype, device=x.device)
    if len(x):
        block = min(CHANNELS, power_of_two(channels))
        kernels.causal_conv1d[(len(x), -(-channels // block))](
            x[:, first:], weight, bias, state,
            tables.table(meta, x.device, tables.state_rows),
            tables.table(meta, x.device, tables.targets),
            out, channels, x.stride(0), width=width, kind=kind, biased=bias is not None,
            block=block, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def gated_delta_rule(
    qkv: Tensor,
    decay: Tensor,
    beta: Tensor,
    rate: Tensor,
    bias: Tensor,
    state: Tensor,
    meta: AttentionMetadata[Tensor],
    key_heads: int,
    decay_first: int = 0,
    beta_first: int = 0,
) -> Tensor:
    """See `torch_ops.recurrent.gated_delta_rule`."""
    _, heads, key_dim, value_dim = state.shape
    out = torch.empty((len(qkv), heads * value_dim), dtype=qkv.dtype, device=qkv.device)
    if len(qkv):
        block = min(COLUMNS, power_of_two(value_dim))
        kernels.gated_delta_rule[(meta.num_seqs, heads, -(-value_dim // block))](
            qkv, decay, beta, rate, bias, state,
            tables.table(meta, qkv.device, tables.sequences),
            tables.table(meta, qkv.device, tables.targets),
            out, qkv.stride(0), decay.stride(0), beta.stride(0), decay_first, beta_first, heads,
            key_heads, key_dim**-0.5, key_dim=key_dim, value_dim=value_dim,
            by_row=len(bias) > heads, block_key=power_of_two(key_dim), block_value=block,
            enable_fp_fusion=False,
        )  # fmt: skip
    return out


def mamba2_scan(
    xbc: Tensor,
    dt: Tensor,
    rate: Tensor,
    skip: Tensor,
    bias: Tensor,
    state: Tensor,
    meta: AttentionMetadata[Tensor],
    groups: int,
    first: int = 0,
    limits: tuple[float, float] = (0.0, inf),
) -> Tensor:
    """See `torch_ops.recurrent.mamba2_scan`."""
    _, heads, state_dim, head_dim = state.shape
    out = torch.empty((len(xbc), heads * head_dim), dtype=xbc.dtype, device=xbc.device)
    if len(xbc):
        block = min(COLUMNS, power_of_two(head_dim))
        kernels.mamba2_scan[(meta.num_seqs, heads, -(-head_dim // block))](
            xbc, dt, rate, skip, bias, state,
            tables.table(meta, xbc.device, tables.sequences),
            tables.table(meta, xbc.device, tables.targets),
            out, xbc.stride(0), dt.stride(0), first, heads, groups, *map(float, limits),
            state_dim=state_dim, head_dim=head_dim, block_state=power_of_two(state_dim),
            block_head=block, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def gated_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None,
    eps: float,
    kind: GateKind,
    first: int = 0,
    norm_first: bool = True,
) -> Tensor:
    """See `torch_ops.recurrent.gated_norm`."""
    rows, columns = x.shape
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    if rows:
        width = min(columns, 1024) if weight is None else weight.shape[-1]
        own = weight is not None and weight.dim() == 2 and len(weight) > 1
        block = power_of_two(width)
        kernels.gated_norm[(rows, -(-columns // width))](
            x, gate, weight, out, width, columns, x.stride(0), gate.stride(0),
            width if own else 0, first, eps, kind=kind, normed=weight is not None,
            norm_first=norm_first, block=block, num_warps=warps(block), enable_fp_fusion=False,
        )  # fmt: skip
    return out
