from __future__ import annotations

from quire.ops.metadata import Span
from tests.golden.harness import make_metadata


def test_spans_and_slots() -> None:
    meta = make_metadata([3, 1], [10, 17], [[4, 2], [9, 0, 7]], block_size=8)
    assert meta.spans == [Span(0, 3, 10), Span(3, 4, 17)]
    assert meta.slot_mapping.tolist() == [4 * 8 + 7, 2 * 8, 2 * 8 + 1, 7 * 8]
    assert meta.num_seqs == 2
