"""Temperature, top_k, top_p, min_p: against an oracle, and against Transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from quire.core.sampling_params import SamplingParams
from quire.ops.filters import filtered, top_k, top_p
from tests.examples import examples
from tests.unit.sampling.oracle import probabilities


def distribution(logits: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float64]:
    ids, scaled = filtered(logits, params)
    weights = np.exp(scaled)
    probs = np.zeros(len(logits))
    probs[slice(None) if ids is None else ids] = weights / weights.sum()
    return probs


def row(seed: int, vocab: int = 50) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 3, vocab).astype(np.float32)


@settings(max_examples=examples(200), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    vocab=st.integers(1, 70),
    temperature=st.floats(0.05, 5.0),
    k=st.integers(-1, 80),
    p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
)
def test_distribution_is_the_oracles(
    seed: int, vocab: int, temperature: float, k: int, p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=k, top_p=p, min_p=min_p)
    logits = row(seed, vocab)
    expected = probabilities(logits.astype(np.float64), params)
    np.testing.assert_allclose(distribution(logits, params), expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("params", "warper"),
    [
        (SamplingParams(top_k=7), TopKLogitsWarper(7)),
        (SamplingParams(top_p=0.8), TopPLogitsWarper(0.8)),
        (SamplingParams(top_p=0.05), TopPLogitsWarper(0.05)),
        (SamplingParams(min_p=0.1), MinPLogitsWarper(0.1)),
    ],
)
def test_distribution_is_transformers(seed: int, params: SamplingParams, warper: object) -> None:
    logits = row(seed, 1000)
    assert callable(warper)
    scores = warper(torch.zeros(1, 1, dtype=torch.long), torch.from_numpy(logits)[None])
    expected = scores[0].double().softmax(-1).numpy()
    np.testing.assert_allclose(distribution(logits, params), expected, atol=1e-9)


def test_ties_with_the_kth_all_stay() -> None:
    logits = np.array([1, 3, 2, 2, 0, 2], dtype=np.float32)
    assert top_k(logits, 2).tolist() == [1, 2, 3, 5]


def test_nucleus_breaks_ties_by_id_and_is_never_empty() -> None:
    weights = np.array([0.5, 1.0, 1.0, 1.0])
    assert top_p(weights, 0.5).tolist() == [1, 2]
    assert top_p(weights, 1e-9).tolist() == [1]


@given(st.integers(0, 1000), st.floats(0.001, 0.999999))
@settings(max_examples=50, deadline=None)
def test_nucleus_needs_no_token_that_is_not_sorted(seed: int, p: float) -> None:
    """The bound that spares most of the vocabulary the sort never changes the nucleus."""
    weights = np.exp(np.random.default_rng(seed).normal(0, 6, 3000))
    order = np.argsort(-weights, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(weights[order])[:-1]])
    expected = np.sort(order[before < p * weights.sum()])
    assert top_p(weights, p).tolist() == expected.tolist()


@pytest.mark.parametrize("temperature", [1e-300, 1e-6, 1e-3])
def test_the_coldest_temperatures_are_greedy(temperature: float) -> None:
    logits = row(3)
    probs = distribution(logits, SamplingParams(temperature=temperature))
    assert probs.argmax() == logits.argmax()
    assert probs.max() == 1.0
