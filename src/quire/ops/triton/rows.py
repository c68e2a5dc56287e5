"""Ops on rows: norms, activations, the largest logit."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from quire.core.model_config import Activation
from quire.ops.filters import FloatRow
from quire.ops.sample_row import TokenIds
from quire.ops.triton.kernels import elementwise, norms
from quire.ops.triton.launch import overlap, power_of_two, warps
from quire.ops.weights import GATED, GATED_BY

UNGATED: dict[str, str] = {kind: name for name, kind in GATED_BY.items()}
"""A gated activation → what multiplies the other half."""
BLOCK = 1024


Code = torch.dtype | None
"""The 8-bit type in which a norm writes its rows as well."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, coded: Code = None) -> Tensor:
    """See `reference.rms_norm`. With `coded`, `codes_of` the result is there."""
    return _norm(norms.rms_norm, x, None, (weight,), eps, coded)[0]


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, coded: Code = None
) -> tuple[Tensor, Tensor]:
    """See `reference.add_rms_norm`."""
    return _norm(norms.rms_norm, x, residual, (weight,), eps, coded)


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, *, coded: Code = None
) -> Tensor:
    """See `reference.layer_norm`."""
    return _norm(norms.layer_norm, x, None, (weight, bias), eps, coded)[0]


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, *, coded: Code = None
) -> tuple[Tensor, Tensor]:
    """See `reference.add_layer_norm`."""
    return _norm(norms.layer_norm, x, residual, (weight, bias), eps, coded)


NORMS: tuple[Any, ...] = (rms_norm, add_rms_norm, layer_norm, add_layer_norm)


def coded_norms(dtype: torch.dtype) -> dict[str, Any]:
    """Return norms that also quantize their rows, for models whose products take such rows."""
    return {norm.__name__: partial(norm, coded=dtype) for norm in NORMS}


def normalize(x: Tensor, weight: Tensor, eps: float) -> None:
    """Put `rms_norm` of the rows of x [T, width] in their place; each row is contiguous."""
    _norm(norms.rms_norm, x, None, (weight,), eps, out=x)


def _norm(
    kernel: Any,
    x: Tensor,
    residual: Tensor | None,
    gains: tuple[Tensor, ...],
    eps: float,
    coded: Code = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the norm of the rows of x [..., width], or of x + residual, and that sum."""
    width = x.shape[-1]
    rows = _rows(x)
    more = rows if residual is None else _rows(residual)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    total = out if residual is None else torch.empty_like(out)
    codes, scales = _places(rows, coded) if coded else (None, None)
    block = power_of_two(width)
    if len(rows):
        kernel[(len(rows),)](
            rows, more, *gains, out, total, codes, scales, width, rows.stride(0), more.stride(0),
            out.stride(0) if out.dim() == 2 else width, eps, add=residual is not None,
            coded=coded is not None, block=block, num_warps=warps(block),
            enable_fp_fusion=False, **overlap(x.device),
        )  # fmt: skip
    if coded and x.dim() == 2:
        setattr(out, _CODES, (codes, scales))
    return out, total


_CODES = "_quire_codes"


def codes_of(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return rows [T, K] as int8 or e4m3, and their scales, float32 [T].

    A norm may have made them. Nothing writes into what a norm returned, so they still hold.
    """
    found: tuple[Tensor, Tensor] | None = getattr(x, _CODES, None)
    if found is not None and found[0].dtype == dtype:
        return found
    out, scales = _places(x, dtype)
    width = x.shape[1]
    block = power_of_two(width)
    norms.quantize_rows[(len(x),)](
        x, out, scales, width, x.stride(0), block=block, num_warps=warps(block),
        enable_fp_fusion=False, **overlap(x.device),
    )  # fmt: skip
    return out, scales


def _places(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return memory for the codes of rows and their scales."""
    codes = torch.empty(rows.shape, dtype=dtype, device=rows.device)
    return codes, torch.empty(len(rows), dtype=torch.float32, device=rows.device)


def _rows(x: Tensor) -> Tensor:
    """Return [rows, width], each row contiguous."""
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def activation(x: Tensor, kind: Activation) -> Tensor:
    """See `torch_ops.activations`."""
    gated = kind in GATED
    rows = _rows(x)
    width = rows.shape[1] // (1 + gated)
    out = torch.empty((*x.shape[:-1], width), dtype=x.dtype, device=x.device)
    if out.numel():
        elementwise.activation[(len(rows), -(-width // BLOCK))](
            rows, out, width, rows.stride(0),
            kind=UNGATED.get(kind, kind), gated=gated, block=BLOCK,
            enable_fp_fusion=False, **overlap(x.device),
        )  # fmt: skip
    return out


def argmax(logits: Tensor) -> tuple[TokenIds, FloatRow]:
    """See `torch_ops.sampling.argmax`."""
    rows, width = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    peaks = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows:
        block = min(4096, power_of_two(width))
        elementwise.argmax[(rows,)](
            logits, tokens, peaks, width, logits.stride(0), block=block, num_warps=warps(block),
            enable_fp_fusion=False,
        )  # fmt: skip
    return tokens.cpu().numpy(), peaks.cpu().numpy()
