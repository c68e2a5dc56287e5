"""The slots that passes read and write."""

from __future__ import annotations

import numpy as np

from quire.core.batch import NO_STATE, FirstState
from quire.runner.recurrent import StateSlotTables

BLOCK = 8


def tables(per_request: int = 2) -> StateSlotTables:
    found = StateSlotTables(4, 10, BLOCK, per_request, 100)
    found.add(1, FirstState(NO_STATE, [10 + i for i in range(per_request)]))
    found.begin_step()
    return found


def run(
    slots: StateSlotTables, start: int, count: int, drafts: int | None = None
) -> tuple[int, list[int]]:
    source, target = slots.next_pass(
        np.array([1]),
        np.array([start]),
        np.array([0, count], np.int32),
        None if drafts is None else np.array([drafts]),
    )
    written = target[target != NO_STATE].tolist()
    assert len(written) == len({*written, int(source[0])} - {int(source[0])})  # no slot twice
    return int(source[0]), target.tolist()


def test_steps_write_the_working_slots_in_turn() -> None:
    slots = tables()
    assert run(slots, 0, 3) == (NO_STATE, [NO_STATE, NO_STATE, 10])
    slots.begin_step()
    assert run(slots, 3, 1) == (10, [11])
    slots.begin_step()
    assert run(slots, 4, 1) == (11, [10])


def test_a_failed_step_begins_where_it_did() -> None:
    slots = tables()
    run(slots, 0, 3)
    slots.begin_step()
    assert run(slots, 3, 1) == (10, [11])
    slots.undo()
    slots.begin_step()
    assert run(slots, 3, 1) == (10, [11])


def test_a_last_row_that_is_computed_again_begins_where_it_did() -> None:
    slots = tables()
    run(slots, 0, 3)
    for _ in range(3):
        slots.begin_step()
        assert run(slots, 3, 1) == (10, [11])


def test_a_snapshot_is_the_next_state() -> None:
    slots = tables()
    slots.extend(np.array([1, 1]), np.array([0, 1]), np.array([7, 5]))
    assert run(slots, 0, 10) == (NO_STATE, [NO_STATE] * 7 + [7, NO_STATE, 10])
    slots.begin_step()
    assert run(slots, 10, 6) == (10, [NO_STATE] * 5 + [5])
    slots.begin_step()
    assert run(slots, 16, 1) == (5, [10])


def test_rejected_drafts_are_taken_back() -> None:
    slots = tables(per_request=5)
    run(slots, 0, 4)
    for right in range(4):  # of one token and three drafts
        slots.begin_step()
        source, target = run(slots, 4, 4, drafts=3)
        assert len({source, *target}) == 5
        slots.begin_step()
        assert run(slots, 5 + right, 1)[0] == target[right]
        slots.undo()
        slots.begin_step()
        run(slots, 4, 4, drafts=3)
        slots.undo()


def test_later_passes_keep_the_state_that_a_step_began_with() -> None:
    slots = tables(per_request=3)
    run(slots, 0, 4)
    slots.begin_step()
    first, *_ = run(slots, 4, 1)
    for position in (5, 6, 7):
        source, target = run(slots, position, 1)
        assert first not in target
        assert source not in target
    slots.undo()
    slots.begin_step()
    assert run(slots, 4, 1)[0] == first


def test_a_new_sequence_forgets_the_old_table() -> None:
    slots = tables()
    slots.extend(np.array([1]), np.array([0]), np.array([7]))
    slots.add(1, FirstState(3, [4, 5]))
    slots.begin_step()
    assert run(slots, 0, BLOCK) == (3, [NO_STATE] * (BLOCK - 1) + [4])
