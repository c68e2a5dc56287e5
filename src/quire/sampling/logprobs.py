"""Log-probabilities of the model itself: of the logits before any sampling parameter."""

from __future__ import annotations

import math

import numpy as np

from quire.core.messages import TokenLogprobs
from quire.sampling.filters import top_k
from quire.sampling.masks import FloatRow


def token_logprobs(logits: FloatRow, token: int, k: int) -> TokenLogprobs:
    """`token`'s log-probability and rank under softmax(`logits` [vocab]), and the k likeliest.

    Ties rank equal, and are listed by id. Computed in float64, a row at a time, so that the
    same row gives the same bits in any batch. The maximum of `logits` must be finite.
    """
    peak = np.float64(logits.max())
    log_total = peak + math.log(np.exp(logits - peak).sum())
    ids = [token]
    if k > 0:
        likeliest = top_k(logits, min(k, len(logits)))
        best = np.argsort(-logits[likeliest], kind="stable")[:k]
        ids += likeliest[best].tolist()
    values = logits[ids] - log_total
    rank = 1 + int(np.count_nonzero(logits > logits[token]))
    return TokenLogprobs(token_ids=ids, logprobs=values.tolist(), rank=rank)
