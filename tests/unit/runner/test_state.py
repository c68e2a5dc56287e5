"""Slots, tokens and block tables of the sequences in the runner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire.core.batch import NewSequence, SchedulerOutput, block_columns
from quire.core.sampling_params import SamplingParams
from quire.runner.state import SequenceStates


def new(
    name: str, *tokens: int, prompt: int | None = None, params: SamplingParams | None = None
) -> NewSequence:
    return NewSequence(name, list(tokens), prompt or len(tokens), params or SamplingParams())


def step(
    rows: dict[str, tuple[int, int, list[int]]], added: list[NewSequence] | None = None
) -> SchedulerOutput:
    """A step of {name: (computed, scheduled, new blocks)}."""
    return SchedulerOutput(
        step=1,
        request_ids=list(rows),
        num_scheduled_tokens=np.array([row[1] for row in rows.values()], dtype=np.int64),
        num_computed_tokens=np.array([row[0] for row in rows.values()], dtype=np.int64),
        new_blocks=block_columns([(i, 0, row[2]) for i, row in enumerate(rows.values())]),
        new_sequences=added or [],
        removed=[],
        total_num_scheduled_tokens=sum(row[1] for row in rows.values()),
    )


def snapshot(states: SequenceStates) -> dict[str, Any]:
    return {
        "slots": dict(states._slots),
        "free": sorted(states._free),
        "sampling": sorted(states.sampling),
        "tokens": [states.token_ids[s, : states.num_tokens[s]].tolist() for s in states.sampling],
    }


def test_a_sequences_life() -> None:
    states = SequenceStates(2, 32, 8)
    slots = states.begin(
        step({"a": (0, 9, [5, 3]), "b": (0, 2, [7])}, [new("a", *range(9)), new("b", 4, 2)])
    )
    a, b = slots.tolist()
    assert states.token_ids[a, :9].tolist() == list(range(9))
    assert states.block_tables[a, :2].tolist() == [5, 3]
    states.append(np.array([a, b]), np.array([31, 32]))
    states.num_computed[[a, b]] = 9, 2
    assert states.begin(step({"b": (2, 1, []), "a": (9, 1, [])})).tolist() == [b, a]
    assert states.num_tokens[[a, b]].tolist() == [10, 3]
    assert states.token_ids[b, 2] == 32
    assert states.sampling[a].num_output_tokens == 1
    states.remove(["a", "nobody"])
    assert "a" not in states
    assert len(states) == 1
    (c,) = states.begin(step({"c": (0, 1, [1])}, [new("c", 6, 6, prompt=1)])).tolist()
    assert c == a
    assert states.block_tables[c, 0] == 1
    assert states.sampling[c].num_output_tokens == 1


def test_undo_leaves_no_trace() -> None:
    states = SequenceStates(3, 32, 8)
    states.begin(step({"a": (0, 3, [4])}, [new("a", 1, 2, 3)]))
    before = snapshot(states)
    asked = step({"a": (0, 3, []), "b": (0, 1, [5])}, [new("b", 9)])
    for _ in range(3):
        states.begin(asked)
        assert snapshot(states) != before
        states.undo(asked)
        assert snapshot(states) == before


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (step({"a": (0, 1, [])}, [new("a", 1)]), "added twice"),
        (step({"c": (0, 1, [1])}, [new("c", 1), new("c", 1)]), "added twice"),
        (step({"c": (0, 1, [1])}), "unknown"),
        (step({"c": (0, 1, [1])}, [new("c", *range(33))]), "max_model_len"),
        (step({"c": (0, 1, [1])}, [new("c")]), "max_model_len"),
        (step({"c": (0, 1, [1, 2, 3, 4, 5])}, [new("c", 1)]), "5 blocks"),
        (step({"a": (0, 4, [])}), "0 to 4 are asked for"),
        (step({"a": (-1, 1, [])}), "0 of them computed"),
        (step({"a": (0, 0, [])}), "are asked for"),
        (step({}, [new("b", 1), new("c", 1)]), "slots are free"),
    ],
)
def test_a_step_that_contradicts_the_state_changes_nothing(
    wrong: SchedulerOutput, message: str
) -> None:
    states = SequenceStates(2, 32, 8)
    states.begin(step({"a": (0, 3, [4])}, [new("a", 1, 2, 3)]))
    before = snapshot(states)
    with pytest.raises(ValueError, match=message):
        states.begin(wrong)
    assert snapshot(states) == before


def test_arrays_are_made_once() -> None:
    states = SequenceStates(2, 32, 8)
    arrays = [states.token_ids, states.block_tables, states.num_tokens]
    for i in range(20):
        name = str(i)
        slots = states.begin(step({name: (0, 2, [1])}, [new(name, 1, 2)]))
        states.append(slots, np.array([3]))
        states.remove([name])
    assert all(
        now is then
        for now, then in zip(
            [states.token_ids, states.block_tables, states.num_tokens], arrays, strict=True
        )
    )
    assert states.token_ids.dtype == states.block_tables.dtype == np.int32
