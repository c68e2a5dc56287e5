"""Temperature, top_k, min_p and top_p: from logits to the tokens that are sampled from.

All three filters keep a prefix of the tokens in descending order of probability, so that their
order matters only for top_p, which counts the mass that the others left (as in vLLM).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from quire.core.sampling_params import SamplingParams

FloatRow = NDArray[np.float32]
Weights = NDArray[np.float64]
Scaled = NDArray[np.float64]
Ids = NDArray[np.int64]


def filtered(logits: FloatRow, params: SamplingParams) -> tuple[Ids | None, Weights]:
    """Return the tokens that may be sampled and their weights.

    Args:
        logits: float32 [vocab]; its maximum is finite.
        params: temperature > 0, top_k, top_p, min_p.

    Returns:
        ids [c] or None, and float64 [c]: (logit - max) / temperature, at most 0.
    """
    peak = np.float64(logits.max())
    ids = None
    if 0 < params.top_k < len(logits):
        ids = top_k(logits, params.top_k)
    # Subtracting first keeps the exponent ≤ 0: no temperature, however low, can overflow.
    with np.errstate(over="ignore"):
        x = (_take(logits, ids).astype(np.float64) - peak) / params.temperature
    if params.min_p > 0.0:
        kept = np.flatnonzero(x >= math.log(params.min_p))
        ids, x = _take_ids(ids, kept), x[kept]
    if params.top_p < 1.0:
        kept = top_p(np.exp(x), params.top_p)
        ids, x = _take_ids(ids, kept), x[kept]
    return ids, x


def top_k(logits: FloatRow | Scaled, k: int) -> Ids:
    """Return ids of the k largest of `logits` [vocab], ascending; ties with the k-th stay."""
    at = len(logits) - k
    return np.flatnonzero(logits >= np.partition(logits, at)[at])


def top_p(weights: Weights, p: float) -> Ids:
    """Return the indices of the nucleus of `weights` [c], ascending (Holtzman et al., 2019).

    A token stays while those before it, in descending order with ties by index, hold less than
    `p` of the mass. Only tokens that could matter are sorted: those lighter than
    (1 - p) · total / c together weigh at most (1 - p) · total, and so come after the cut.
    """
    total = weights.sum()
    # Half of the bound, so that rounding cannot reach it.
    candidates = np.flatnonzero(weights >= 0.5 * (1.0 - p) * total / len(weights))
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    mass = np.cumsum(weights[order])
    size = int(np.searchsorted(mass, p * total, side="left")) + 1
    return np.sort(order[:size])


def _take(logits: FloatRow, ids: Ids | None) -> FloatRow:
    return logits if ids is None else logits[ids]


def _take_ids(ids: Ids | None, kept: Ids) -> Ids:
    return kept if ids is None else ids[kept]
