from __future__ import annotations

import numpy as np
import pytest

from quire.ops.metadata import Span, StateSlots
from tests.golden.harness import make_metadata


def test_spans_and_slots() -> None:
    meta = make_metadata([3, 1], [10, 17], [[4, 2], [9, 0, 7]], block_size=8)
    assert meta.spans == [Span(0, 3, 10), Span(3, 4, 17)]
    assert meta.slot_mapping.tolist() == [4 * 8 + 7, 2 * 8, 2 * 8 + 1, 7 * 8]
    assert meta.num_seqs == 2


def test_state_slots_that_fit() -> None:
    starts = np.array([0, 3, 4], np.int32)
    for sources, targets in (
        ([-1, -1], [-1, -1, -1, -1]),
        ([0, 0], [2, -1, 3, 1]),
        ([0, 1], [-1, 2, 0, 1]),
    ):
        slots(sources, targets).check(starts, 4)


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        ([4, -1], [-1, -1, -1, -1], "state_from has slot 4; there are 4"),
        ([0, -2], [-1, -1, -1, -1], "state_from has slot -2"),
        ([0, 1], [-1, 9, -1, -1], "state_to has slot 9"),
        ([0], [-1, -1, -1, -1], "1 slots to begin with"),
        ([0, 1], [-1, -1, -1], "3 to write, for 2 sequences with 4 rows"),
        ([0, 1], [2, -1, 2, -1], "two rows write"),
        ([0, 1], [0, -1, -1, -1], "row 0 overwrites slot 0"),
        ([0, 1], [-1, -1, 1, -1], "row 2 overwrites slot 1"),
        ([0, 0], [-1, -1, 0, -1], "row 2 overwrites slot 0"),
    ],
)
def test_state_slots_that_do_not_fit(sources: list[int], targets: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        slots(sources, targets).check(np.array([0, 3, 4], np.int32), 4)


def slots(sources: list[int], targets: list[int]) -> StateSlots:
    return StateSlots(np.array(sources, np.int32), np.array(targets, np.int64))
