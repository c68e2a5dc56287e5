"""Tokens that another stage samples, with and without drafts."""

from __future__ import annotations

import numpy as np

from quire.core.batch import token_columns
from quire.runner.state import SequenceStates
from quire.runner.unsettled import Unsettled
from tests.unit.runner.test_state import new, step


def test_tokens_come_for_the_sequences_that_are_still_there() -> None:
    """As many as drafts were right, and one more; none of a row that could not be sampled."""
    states = SequenceStates(4, 32, 8)
    unsettled = Unsettled(states)
    texts = {"gone": [1], "three": [2, 3], "prompt": [4, 5, 6], "none": [7, 8]}
    first = step(
        {name: (0, len(text), [0]) for name, text in texts.items()},
        [new(name, *text) for name, text in texts.items()],
    )
    slots = states.begin(first)
    ends = np.array([1, 2, 2, 2])  # of "prompt", a token is left
    states.num_computed[slots] = ends
    unsettled.note(first, np.array([0, 1, 3]), np.zeros(4, dtype=np.int64))
    states.remove(["gone"])
    unsettled.settle(token_columns([[20], [21, 22, 23], [], []]))
    there = slots[1:]
    assert states.num_tokens[there].tolist() == [5, 3, 2]
    assert states.num_computed[there].tolist() == [4, 2, 1]
    assert states.token_ids[slots[1], :5].tolist() == [2, 3, 21, 22, 23]
    unsettled.settle(token_columns([[1]]))  # of a step that was not computed here
    assert states.num_tokens[there].tolist() == [5, 3, 2]
