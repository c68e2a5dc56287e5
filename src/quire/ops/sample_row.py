"""Tokens from logits: what a row is sampled with, and the reference in numpy.

A row's outcome depends on that row alone, to the bit: what needs arithmetic beyond comparisons is
done on one row at a time, in float64. A kernel over the whole batch would be free to cut the batch
where it likes, and with it the rounding of a row.
"""

from __future__ import annotations

import math
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from quire.core.messages import TokenLogprobs
from quire.core.sampling_params import SamplingParams
from quire.ops.filters import FloatRow, Scaled, filtered, top_k
from quire.ops.gumbel import draw
from quire.system.records import dataclass

TokenIds = NDArray[np.int64]
MaskWords = NDArray[np.int32]
NO_TOKENS: TokenIds = np.zeros(0, dtype=np.int64)
NO_VALUES: FloatRow = np.zeros(0, dtype=np.float32)
LEAST_DIVISOR = 1e-269
"""Any float32 divided by it is a finite float64."""


@dataclass(slots=True)
class LogitEdits:
    """Changes to a row of logits, float32, in the order of the fields. Ids appear once each.

    Attributes:
        mask: int32 [ceil(vocab / 32)], token t's bit is bit t % 32 of word t // 32; tokens without
            one are ruled out. None allows all.
        allowed: all other tokens are ruled out; None allows all.
        banned: ruled out.
        bias_ids, bias: float32 [n], added.
        counted: tokens of the context, with how often each was generated in
            `counts`, float32 [n]; their logits are divided by `repetition` where positive, else
            multiplied; then counts · `frequency` and, where the count is not 0, `presence` are
            subtracted.
    """

    mask: MaskWords | None = None
    allowed: TokenIds | None = None
    banned: TokenIds = field(default_factory=lambda: NO_TOKENS)
    bias_ids: TokenIds = field(default_factory=lambda: NO_TOKENS)
    bias: FloatRow = field(default_factory=lambda: NO_VALUES)
    counted: TokenIds = field(default_factory=lambda: NO_TOKENS)
    counts: FloatRow = field(default_factory=lambda: NO_VALUES)
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0

    def apply(self, logits: FloatRow) -> None:
        """Change `logits` [vocab] in place."""
        if self.mask is not None:
            bits = np.unpackbits(self.mask.view(np.uint8), bitorder="little")
            logits[bits[: len(logits)] == 0] = -np.inf
        if self.allowed is not None:
            kept = logits[self.allowed]
            logits.fill(-np.inf)
            logits[self.allowed] = kept
        logits[self.banned] = -np.inf
        logits[self.bias_ids] += self.bias
        x = logits[self.counted]
        repetition = np.float32(self.repetition)
        with np.errstate(over="ignore"):  # infinity is the row's error, not numpy's
            x = np.where(x > 0, x / repetition, x * repetition)
        x -= np.float32(self.frequency) * self.counts
        x -= np.float32(self.presence) * (self.counts > 0)
        logits[self.counted] = x


@dataclass(slots=True)
class SampleRow:
    """What the token of one row of logits is sampled with.

    Attributes:
        row: of the logits.
        params: its temperature, top_k, top_p and min_p, each as `filters` has it; no other field.
        key: of the draw's noise (`gumbel`), in [0, 2^64); greedy rows have none.
        edits: what the logits go through before all this.
    """

    row: int
    params: SamplingParams
    key: int = 0
    edits: LogitEdits | None = None


def sample_row(logits: FloatRow, row: SampleRow) -> int:
    """Return the row's token; -1 if its largest logit, after its edits, is not finite."""
    if row.edits is not None:
        logits = logits.copy()
        row.edits.apply(logits)
    token = int(logits.argmax())
    if not math.isfinite(logits[token]):
        return -1
    if row.params.greedy:
        return token
    ids, scaled = filtered(logits, row.params)
    chosen = draw(scaled, ids, row.key)
    return chosen if ids is None else int(ids[chosen])


def processed(logits: FloatRow, row: SampleRow | None) -> Scaled:
    """Return the logits that `sample_row` draws from, float64 [vocab]; -inf rules a token out.

    Args:
        row: None for a greedy row without edits.
    """
    if row is None:
        return logits.astype(np.float64)
    if row.edits is not None:
        logits = logits.copy()
        row.edits.apply(logits)
    edited = logits.astype(np.float64)
    if row.params.greedy:
        return edited
    ids, _ = filtered(logits, row.params)
    kept = np.arange(len(logits)) if ids is None else ids
    result = np.full_like(edited, -np.inf)
    result[kept] = edited[kept] / max(row.params.temperature, LEAST_DIVISOR)
    return result


def row_logprobs(logits: FloatRow | Scaled, token: int, k: int) -> TokenLogprobs:
    """Return the log-probabilities of `token` and of the `k` likeliest, in float64."""
    peak = np.float64(logits.max())
    log_total = peak + math.log(np.exp(logits - peak).sum())
    ids = [token]
    if k > 0:
        likeliest = top_k(logits, min(k, len(logits)))
        ids += likeliest[np.argsort(-logits[likeliest], kind="stable")[:k]].tolist()
    values = logits[ids] - log_total
    rank = 1 + int(np.count_nonzero(logits > logits[token]))
    return TokenLogprobs(token_ids=ids, logprobs=values.tolist(), rank=rank)
