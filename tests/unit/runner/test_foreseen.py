"""Drafts of the last pipeline stage, which come with the tokens before them."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.core.batch import Column, ModelOutput, token_columns
from quire.runner.foreseen import Foreseen
from quire.runner.state import SequenceStates
from quire.system.stopwatch import Stopwatch
from tests.unit.runner.test_state import new, step

MOST = 3


class Counting:
    """Drafts 100, 101, …, as many as it may."""

    meters = ()

    def begin(self, *_: Any) -> None:
        pass

    def end(self, *_: Any) -> None:
        pass

    def propose(self, states: SequenceStates, slots: Column, most: Column) -> Column:
        for slot, count in zip(slots.tolist(), most.tolist(), strict=True):
            end = int(states.num_tokens[slot])
            states.token_ids[slot, end : end + count] = 100 + np.arange(count)
        return most


def test_all_stages_propose_what_the_last_one_drafted() -> None:
    """Behind a prompt as many as may be, later as many as the step before had; none behind a
    sequence's end, without a token, or behind other tokens."""
    last = Foreseen(4, MOST, Counting())
    first = Foreseen(4, MOST, None)
    states = SequenceStates(4, 32, 8, proposer=last)
    texts = {"prompt": [1, 2], "decodes": [3], "failed": [4, 5], "near": [6] * 30}
    counts = {name: (0, len(text), [0]) for name, text in texts.items()}
    counts["near"] = (0, 30, [0, 1, 2, 3])
    now = step(counts, [new(name, *text) for name, text in texts.items()])
    slots = states.begin(now)
    states.append(slots[[0, 1, 3]], np.array([7, 8, 9]))
    output = ModelOutput(token_columns([[7], [8], [], [9]]))
    last.draft(states, now, slots, output, Stopwatch())
    assert output.drafts.tolist() == [[100, 101, 102], [-1] * 3, [-1] * 3, [100, -1, -1]]
    first.note(states, slots, output.drafts)
    for stage in (last, first):
        states.token_ids[slots[0], 3:6] = 0
        assert stage.propose(states, slots, np.array([2, 2, 2, 2])).tolist() == [2, 0, 0, 1]
        assert states.token_ids[slots[0], 3:6].tolist() == [100, 101, 0]
    states.append(slots[:1], np.array([7]))
    assert not first.propose(states, slots, np.full(4, MOST)).any(where=[True, True, True, False])
