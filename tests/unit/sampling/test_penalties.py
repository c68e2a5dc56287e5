"""Penalties against an oracle and Transformers, and the counts that grow step by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from quire.core.sampling_params import SamplingParams
from quire.ops.filters import FloatRow
from quire.ops.sample_row import LogitEdits
from quire.sampling.penalties import Penalties
from tests.unit.sampling.oracle import edited

VOCAB = 200


def logits(seed: int) -> FloatRow:
    return np.random.default_rng(seed).normal(0, 3, VOCAB).astype(np.float32)


def apply(penalties: Penalties, x: FloatRow, drafts: Sequence[int] = ()) -> None:
    edits = LogitEdits()
    penalties.add_to(edits, np.array(drafts, dtype=np.int32))
    edits.apply(x)


TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=150)


@settings(max_examples=60, deadline=None)
@given(
    prompt=TOKENS,
    output=TOKENS,
    later=TOKENS,
    repetition=st.sampled_from([1.0, 0.5, 1.3, 10.0]),
    presence=st.sampled_from([0.0, 1.5, -2.0]),
    frequency=st.sampled_from([0.0, 0.3, -1.0]),
)
def test_counts_grown_token_by_token_equal_counts_made_at_once(
    prompt: list[int],
    output: list[int],
    later: list[int],
    repetition: float,
    presence: float,
    frequency: float,
) -> None:
    """The second is what a resumed request gets, and drafts change no count; all are what the
    oracle says."""
    params = SamplingParams(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
    )
    start = np.array(prompt, dtype=np.int32)
    grown = Penalties(params, start, np.array(output, dtype=np.int32))
    drafted = logits(1)
    apply(grown, drafted, later)
    for end in range(1, len(later) + 1):
        grown.count(np.array(output + later[:end], dtype=np.int32))
    fresh = Penalties(params, start, np.array(output + later, dtype=np.int32))
    one, other = logits(1), logits(1)
    apply(grown, one)
    apply(fresh, other)
    assert one.tobytes() == other.tobytes() == drafted.tobytes()
    expected = edited(logits(1).astype(np.float64), params, prompt, output + later, [])
    np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("penalty", [0.7, 1.2, 2.0])
def test_repetition_is_transformers(penalty: float) -> None:
    import torch

    prompt, output = [5, 6, 7, 5], [9, 6, 199]
    x = logits(2)
    penalties = Penalties(
        SamplingParams(repetition_penalty=penalty),
        np.array(prompt, dtype=np.int32),
        np.array(output, dtype=np.int32),
    )
    apply(penalties, x)
    oracle = RepetitionPenaltyLogitsProcessor(penalty)
    expected = oracle(torch.tensor([prompt + output]), torch.from_numpy(logits(2))[None])
    np.testing.assert_allclose(x, expected[0].numpy(), rtol=1e-6)
    assert Penalties.needed(SamplingParams(repetition_penalty=penalty))
    assert not Penalties.needed(SamplingParams())


def test_ruled_out_tokens_stay_ruled_out() -> None:
    params = SamplingParams(repetition_penalty=1.5, presence_penalty=-2.0)
    x = logits(3)
    x[4] = -np.inf
    apply(Penalties(params, np.array([4], dtype=np.int32), np.array([4], dtype=np.int32)), x)
    assert x[4] == -np.inf


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_each_penalty_alone_is_needed(name: str) -> None:
    assert Penalties.needed(SamplingParams(**{name: 0.5}))


def test_room_grows_seldom_and_counts_stay() -> None:
    """Two arrays are copied each time: doubling, that is twice a token in all."""
    output = np.arange(1000, dtype=np.int32)
    penalties, sizes = Penalties(SamplingParams(), output[:0], output[:0]), set()
    for end in range(1, 1001):
        penalties.count(output[:end])
        sizes.add(len(penalties._ids))
    assert len(sizes) <= 6
    assert penalties._ids[:1000].tolist() == output.tolist()
    assert penalties._counts[:1000].tolist() == [1.0] * 1000
    assert penalties.num_output_tokens == 1000


def test_completions_of_one_prompt_share_its_tokens() -> None:
    params = SamplingParams(repetition_penalty=1.5)
    prompt, output = np.array([7, 5, 7], dtype=np.int32), np.array([5, 9], dtype=np.int32)
    first, second = Penalties(params, prompt, output), Penalties(params, prompt.copy(), output)
    assert first._prompt is second._prompt
    first.count(np.array([5, 9, 7], dtype=np.int32))
    assert second._counts[: second._size].tolist() == [1, 0, 1]  # of 5, 7, 9
