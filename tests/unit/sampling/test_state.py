"""A sequence's sampling state as tokens arrive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire.core.errors import InvalidRequestError
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams, ThinkingMarks
from quire.ops.filters import FloatRow
from quire.sampling.rng import draw_key
from quire.sampling.state import SamplingState

THINKING = ThinkingMarks(("<think>",), ("</think>",))


def edit(state: SamplingState, logits: FloatRow) -> None:
    edits = state.edits(len(logits))
    if edits is not None:
        edits.apply(logits)


def test_min_tokens_turns_into_plain_greedy() -> None:
    tokens = np.zeros(16, dtype=np.int32)
    count = np.array([3])
    state = SamplingState(SamplingParams(temperature=0.0, min_tokens=2), tokens, count, 3, (0,))
    seen = []
    for _ in range(3):
        logits = np.zeros(4, dtype=np.float32)
        edit(state, logits)
        seen.append((state.plain_greedy, bool(np.isfinite(logits[0]))))
        count += 1
    assert seen == [(False, False), (False, False), (True, True)]


@pytest.mark.parametrize(
    ("params", "unedited"),
    [
        ({}, True),
        ({"temperature": 0.7, "top_k": 3, "logprobs": 2}, True),
        ({"structured_outputs": StructuredOutputsParams(regex="a")}, False),
        ({"thinking_token_budget": 5, "thinking_marks": THINKING}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"logit_bias": {1: 1.0}}, False),
        ({"min_tokens": 2}, False),
        ({"min_tokens": 1}, True),
    ],
)
def test_drafts_see_whether_logits_are_edited(params: dict[str, Any], unedited: bool) -> None:
    tokens, count = np.zeros(16, dtype=np.int32), np.array([3])
    state = SamplingState(SamplingParams(**params), tokens, count, 3, (0,))
    assert state.unedited(ahead=1) == unedited
    assert state.unedited() == (unedited and "min_tokens" not in params)


def test_a_resumed_sequence_edits_as_if_never_stopped() -> None:
    params = SamplingParams(
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        min_tokens=4,
        bad_words_token_ids=[[6, 7]],
    )
    tokens = np.array([5, 6, 0, 0, 0, 0], dtype=np.int32)
    count = np.array([2])
    running = SamplingState(params, tokens, count, 2, (1,))
    for at, token in enumerate([8, 9, 6], start=2):
        edit(running, np.ones(10, dtype=np.float32))
        tokens[at] = token
        count += 1
    resumed = SamplingState(params, tokens.copy(), np.array([5]), 2, (1,))
    one = np.linspace(-1, 1, 10).astype(np.float32)
    other = one.copy()
    edit(running, one)
    edit(resumed, other)
    assert one.tobytes() == other.tobytes()
    assert one[7] == -np.inf
    assert running.num_output_tokens == resumed.num_output_tokens == 3


def test_drafts_count_as_output_for_min_tokens() -> None:
    tokens = np.array([5, 6, 7, 0], dtype=np.int32)
    state = SamplingState(SamplingParams(min_tokens=2), tokens, np.array([2]), 1, (0,))
    state.num_drafts = 1
    banned = []
    for ahead in range(2):
        logits = np.zeros(10, dtype=np.float32)
        if (edits := state.edits(10, ahead)) is not None:
            edits.apply(logits)
        banned.append(bool(np.isinf(logits[0])))
    assert banned == [True, False]


def test_a_bad_word_may_begin_with_the_first_token() -> None:
    params = SamplingParams(bad_words_token_ids=[[6, 7]])
    state = SamplingState(params, np.array([5, 6, 0], dtype=np.int32), np.array([2]), 1)
    logits = np.ones(10, dtype=np.float32)
    edit(state, logits)
    assert np.flatnonzero(logits == -np.inf).tolist() == [7]


def test_penalties_follow_an_output_that_is_taken_back() -> None:
    tokens = np.array([5, 6, 7, 7, 8], dtype=np.int32)
    count = np.array([5])
    params = SamplingParams(frequency_penalty=0.5)
    state = SamplingState(params, tokens, count, 2)
    edit(state, np.ones(10, dtype=np.float32))
    count[0] = 3
    logits = np.ones(10, dtype=np.float32)
    edit(state, logits)
    assert logits[7] == 0.5
    assert logits[8] == 1.0


def test_a_stop_token_ends_the_output_after_min_tokens() -> None:
    count = np.array([4])
    params = SamplingParams(min_tokens=3, stop_token_ids=[9])
    state = SamplingState(params, np.zeros(8, dtype=np.int32), count, 2, (1,))
    assert not state.ended_by(1)
    assert state.ended_by(1, ahead=1)
    count += 1
    assert state.ended_by(1)
    assert state.ended_by(9)
    assert not state.ended_by(2)
    eager = SamplingState(params.replace(ignore_eos=True), np.zeros(8, np.int32), count, 2, (1,))
    assert not eager.ended_by(1)


@pytest.mark.parametrize("field", [None, "response_format"])
def test_a_structure_that_cannot_be_followed_is_an_error_of_its_field(field: str | None) -> None:
    wanted = StructuredOutputsParams(regex="a", field=field)
    params = SamplingParams(structured_outputs=wanted)
    state = SamplingState(params, np.zeros(4, dtype=np.int32), np.array([1]), 1)
    state.fault = "it is too much"
    with pytest.raises(InvalidRequestError, match="it is too much") as error:
        state.edits(8)
    assert error.value.param == (field or "structured_outputs")


def test_the_key_of_a_token_is_that_of_its_place() -> None:
    """A draft counts as output; a greedy sequence needs no noise."""
    tokens, count = np.zeros(16, dtype=np.int32), np.array([5])
    drawn = SamplingState(SamplingParams(seed=7), tokens, count, 3, (0,))
    assert [drawn.draw_key(ahead) for ahead in (0, 2)] == [draw_key(7, 2), draw_key(7, 4)]
    greedy = SamplingState(SamplingParams(temperature=0.0, seed=7), tokens, count, 3, (0,))
    assert greedy.draw_key(2) == 0
