"""A second witness of the distribution: counts of 100,000 tokens, also behind accepted drafts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from quire.core.batch import Column
from quire.core.sampling_params import SamplingParams
from quire.ops.providers import load_ops
from quire.sampling.sampler import Sampler, SamplingBatch
from quire.sampling.state import SamplingState
from tests.unit.sampling.oracle import probabilities

Row = NDArray[np.float32]
Weights = NDArray[np.float64]
VOCAB = 3072
BATCH = 1000
NUM_BATCHES = 170
LEAST = 5.0
"""Expected draws of a token below which it is counted with the others of its kind."""


def draw(sampler: Sampler, states: list[SamplingState], logits: Row, ahead: int) -> Column:
    """A token of each sequence, behind `ahead` drafts."""
    rows = np.ascontiguousarray(np.broadcast_to(logits, (len(states), VOCAB)))
    result = sampler.sample(rows, SamplingBatch(states, [ahead] * len(states)))
    assert not result.errors
    return result.token_ids


@pytest.mark.slow  # 100,000 draws
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_tokens_behind_drafts_are_drawn_from_the_model(temperature: float) -> None:
    """Only draws whose draft, by another model, was right: a bias of acceptance would show."""
    random = np.random.default_rng(0)
    first, second = random.normal(0, 3, (2, VOCAB)).astype(np.float32)
    guesses = first + random.normal(0, 0.05, VOCAB).astype(np.float32)
    sampler = Sampler(load_ops("cpu"))
    counts, number = np.zeros(VOCAB), 0
    for batch in range(NUM_BATCHES):
        params = [
            SamplingParams(temperature=temperature, seed=batch * BATCH + i) for i in range(BATCH)
        ]
        tokens = np.zeros((BATCH, 3), dtype=np.int32)
        length = np.ones(1, dtype=np.int64)
        states = [SamplingState(p, row, length, 1) for p, row in zip(params, tokens, strict=True)]
        drafts = draw(sampler, states, guesses, 0)
        tokens[:, 1] = drafts
        right = draw(sampler, states, first, 0) == drafts
        counts += np.bincount(draw(sampler, states, second, 1)[right], minlength=VOCAB)
        number += int(right.sum())
    assert number > 100_000  # most drafts were right
    scaled = second.astype(np.float64) / temperature
    check(counts, np.exp(scaled - scaled.max()))


@pytest.mark.slow  # 100,000 draws
@pytest.mark.parametrize(
    ("params", "along"),
    [
        (SamplingParams(temperature=1.0), "positions"),
        (SamplingParams(temperature=0.7, top_k=50), "seeds"),
        (SamplingParams(temperature=1.3, top_p=0.9), "positions"),
        (SamplingParams(temperature=1.0, top_k=1000, top_p=0.95, min_p=1e-4), "seeds"),
    ],
)
def test_draws_follow_the_distribution(params: SamplingParams, along: str) -> None:
    logits = np.random.default_rng(0).normal(0, 3, VOCAB).astype(np.float32)
    sampler, counts = Sampler(load_ops("cpu")), np.zeros(VOCAB)
    for batch in range(100):
        states = []
        for i in range(batch * BATCH, (batch + 1) * BATCH):
            seed, position = (i, 0) if along == "seeds" else (99, i)
            length = np.array([1 + position])
            row = np.zeros(1, dtype=np.int32)  # nothing reads the output
            states.append(SamplingState(params.replace(seed=seed), row, length, 1))
        counts += np.bincount(draw(sampler, states, logits, 0), minlength=VOCAB)
    check(counts, probabilities(logits.astype(np.float64), params))


def check(counts: Weights, weights: Weights) -> None:
    """Compare counts with a distribution by a chi-square test."""
    expected = weights * counts.sum() / weights.sum()
    assert not counts[expected == 0].any()
    rare = expected < LEAST
    seen, wanted = counts[~rare], expected[~rare]
    if expected[rare].any():
        seen = np.append(seen, counts[rare].sum())
        wanted = np.append(wanted, expected[rare].sum())
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    freedom = len(seen) - 1
    # The statistic's standard deviation is sqrt(2 · freedom); five are one in a million.
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)
