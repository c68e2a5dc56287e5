"""Temperature, top_k, min_p and top_p: from logits to the weights that are sampled from.

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
Ids = NDArray[np.int64]

RUN = 256
"""Weights that `draw` sums as one."""


def filtered(logits: FloatRow, params: SamplingParams) -> tuple[Ids | None, Weights]:
    """Return the tokens that may be sampled and their weights.

    Args:
        logits: float32 [vocab]; its maximum is finite.
        params: temperature > 0, top_k, top_p, min_p.

    Returns:
        ids [c] or None, and weights float64 [c]: exp((logit - max) / temperature). They are
        not normalized; the likeliest token's is 1.
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
    weights = np.exp(x)
    if params.top_p < 1.0:
        kept = top_p(weights, params.top_p)
        ids, weights = _take_ids(ids, kept), weights[kept]
    return ids, weights


def top_k(logits: FloatRow, k: int) -> Ids:
    """Ids of the k largest of `logits` [vocab], ascending; all that tie with the k-th stay."""
    at = len(logits) - k
    return np.flatnonzero(logits >= np.partition(logits, at)[at])


def top_p(weights: Weights, p: float) -> Ids:
    """Indices, ascending, of the nucleus of `weights` [c] (Holtzman et al., 2019).

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


def draw(ids: Ids | None, weights: Weights, u: float) -> int:
    """Return the token whose stretch of the cumulative distribution, in order of id, holds `u`.

    Runs of `RUN` weights are summed first and only one run is walked, because a running
    sum cannot use vector instructions: at 50,000 tokens it is eight times the work.

    Args:
        ids: as `filtered` gives them.
        weights: float64 [c], at least one of them positive.
        u: in [0, 1).
    """
    mass = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), RUN)))
    target = u * mass[-1]
    run = int(np.searchsorted(mass, target, side="right"))
    inside = weights[run * RUN : (run + 1) * RUN]
    rest = target - (mass[run - 1] if run else 0.0)
    at = int(np.searchsorted(np.cumsum(inside), rest, side="right"))
    if at == len(inside):  # the run's sum, rounded otherwise than its running sum
        at = int(np.flatnonzero(inside)[-1])
    at += run * RUN
    return at if ids is None else int(ids[at])


def _take(logits: FloatRow, ids: Ids | None) -> FloatRow:
    return logits if ids is None else logits[ids]


def _take_ids(ids: Ids | None, kept: Ids) -> Ids:
    return kept if ids is None else ids[kept]
