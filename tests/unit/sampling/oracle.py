"""The sampler once more, slowly: plain float64 numpy over the whole vocabulary, no shortcuts."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from quire.core.sampling_params import SamplingParams

Row = NDArray[np.float64]


def edited(
    logits: Row, p: SamplingParams, prompt: list[int], output: list[int], stops: list[int]
) -> Row:
    x = logits.astype(np.float64).copy()
    vocab = range(len(x))
    if p.allowed_token_ids is not None:
        x = np.array([x[t] if t in p.allowed_token_ids else -np.inf for t in vocab])
    for word in p.bad_words_token_ids or []:
        begun = word[:-1]
        if begun == output[len(output) - len(begun) :] and len(begun) <= len(output):
            x[word[-1]] = -np.inf
    if len(output) < p.min_tokens:
        x[stops] = -np.inf
    for token, bias in (p.logit_bias or {}).items():
        x[token] += bias
    counts = Counter(output)
    for token in vocab:
        if token in prompt or token in output:
            x[token] = (
                x[token] / p.repetition_penalty if x[token] > 0 else x[token] * p.repetition_penalty
            )
        if token in counts:
            x[token] -= p.frequency_penalty * counts[token] + p.presence_penalty
    return x


def probabilities(x: Row, p: SamplingParams) -> Row:
    """The distribution after temperature, min_p, top_k and top_p."""
    probs = np.exp((x - x.max()) / p.temperature)
    probs /= probs.sum()
    keep = probs >= p.min_p * probs.max()
    if 0 < p.top_k < len(x):
        keep &= x >= np.sort(x)[::-1][p.top_k - 1]
    probs = np.where(keep, probs, 0.0)
    probs /= probs.sum()
    if p.top_p < 1.0:
        order = sorted(range(len(x)), key=lambda t: (-probs[t], t))
        mass, kept = 0.0, set()
        for token in order:
            if mass >= p.top_p:
                break
            kept.add(token)
            mass += probs[token]
        probs = np.array([probs[t] if t in kept else 0.0 for t in range(len(x))])
        probs /= probs.sum()
    return probs
