"""Launches of recurrent layers."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.ops.metadata import AttentionMetadata, Convolution, DeltaRules, GatedNorm, ScanRules
from quire.ops.triton import tables
from quire.ops.triton.kernels import recurrent as kernels
from quire.ops.triton.launch import power_of_two, warps
from quire.ops.triton.tuning import chosen

CHANNELS = 512
STAGES = 3
"""Tokens whose rows are loaded ahead: a state takes them in turn, and would wait for each."""
COLUMNS = 32
"""Columns of a state that one program owns: with 128 rows, 32 numbers for each of 128 threads."""


def causal_conv1d(
    x: Tensor, conv: Convolution[Tensor], state: Tensor, meta: AttentionMetadata[Tensor]
) -> Tensor:
    """See `torch_ops.recurrent.causal_conv1d`."""
    weight, bias, kind, first = conv
    width, channels = weight.shape
    out = torch.empty((len(x), channels), dtype=x.dtype, device=x.device)
    if len(x):
        sizes = chosen(x.device).states("causal_conv1d", width - 1, channels)
        block = min(sizes.channels or CHANNELS, power_of_two(channels))
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
    rules: DeltaRules[Tensor],
    state: Tensor,
    meta: AttentionMetadata[Tensor],
) -> Tensor:
    """See `torch_ops.recurrent.gated_delta_rule`."""
    _, heads, key_dim, value_dim = state.shape
    out = torch.empty((len(qkv), heads * value_dim), dtype=qkv.dtype, device=qkv.device)
    if len(qkv):
        block = min(COLUMNS, power_of_two(value_dim))
        kernels.gated_delta_rule[(meta.num_seqs, heads, -(-value_dim // block))](
            qkv, decay, beta, rules.rate, rules.bias, state,
            tables.table(meta, qkv.device, tables.sequences),
            tables.table(meta, qkv.device, tables.targets),
            out, qkv.stride(0), decay.stride(0), beta.stride(0), rules.decay, rules.beta,
            heads, rules.key_heads, key_dim**-0.5, key_dim=key_dim, value_dim=value_dim,
            by_row=len(rules.bias) > heads, block_key=power_of_two(key_dim), block_value=block,
            stages=_stages("gated_delta_rule", state), enable_fp_fusion=False,
        )  # fmt: skip
    return out


def mamba2_scan(
    xbc: Tensor,
    dt: Tensor,
    rules: ScanRules[Tensor],
    state: Tensor,
    meta: AttentionMetadata[Tensor],
) -> Tensor:
    """See `torch_ops.recurrent.mamba2_scan`."""
    _, heads, state_dim, head_dim = state.shape
    out = torch.empty((len(xbc), heads * head_dim), dtype=xbc.dtype, device=xbc.device)
    if len(xbc):
        block = min(COLUMNS, power_of_two(head_dim))
        kernels.mamba2_scan[(meta.num_seqs, heads, -(-head_dim // block))](
            xbc, dt, rules.rate, rules.skip, rules.bias, state,
            tables.table(meta, xbc.device, tables.sequences),
            tables.table(meta, xbc.device, tables.targets),
            out, xbc.stride(0), dt.stride(0), rules.first, heads, rules.groups,
            *map(float, rules.limits),
            state_dim=state_dim, head_dim=head_dim, block_state=power_of_two(state_dim),
            block_head=block, stages=_stages("mamba2_scan", state), enable_fp_fusion=False,
        )  # fmt: skip
    return out


def _stages(op: str, state: Tensor) -> int:
    """Return how many tokens' rows are loaded ahead, for a state [slots, heads, rows, columns]."""
    return chosen(state.device).states(op, *state.shape[2:]).stages or STAGES


def gated_norm(x: Tensor, gate: Tensor, norm: GatedNorm[Tensor]) -> Tensor:
    """See `torch_ops.recurrent.gated_norm`."""
    weight = norm.weight
    rows, columns = x.shape
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    if rows:
        width = min(columns, 1024) if weight is None else weight.shape[-1]
        own = weight is not None and weight.dim() == 2 and len(weight) > 1
        block = power_of_two(width)
        kernels.gated_norm[(rows, -(-columns // width))](
            x, gate, weight, out, width, columns, x.stride(0), gate.stride(0),
            width if own else 0, norm.first, norm.eps, norm.each, kind=norm.kind,
            normed=weight is not None, norm_first=norm.norm_first, block=block,
            num_warps=warps(block), enable_fp_fusion=False,
        )  # fmt: skip
    return out
