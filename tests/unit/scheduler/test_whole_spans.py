"""Chunks and images that are computed in one step."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.errors import InvalidRequestError
from quire.core.images import ImageSpan
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.scheduler.whole_spans import WholeSpans


def request(*spans: tuple[int, int]) -> Request:
    images = tuple(
        ImageSpan(first, last - first, b"", None, (8, 8), b"", (first, last))
        for first, last in spans
    )
    given = SamplingParams()
    return Request("r", [1] * 40, given, arrival_time=0.0, max_model_len=64, images=images)


@pytest.mark.parametrize(
    ("start", "count", "room", "expected"),
    [
        (0, 10, 40, 10),  # ends where the image begins
        (0, 11, 40, 10),  # would end inside
        (0, 14, 40, 14),  # ends with it
        (10, 1, 40, 4),  # nothing before it: takes it whole
        (10, 1, 3, 0),  # no room: waits
        (12, 1, 2, 2),  # its first rows are cached
        (14, 3, 3, 3),
        (10, 12, 12, 10),  # the next image begins at 20
    ],
)
def test_a_chunk_does_not_end_inside_an_image(
    start: int, count: int, room: int, expected: int
) -> None:
    spans = WholeSpans(100, active=True)
    assert spans.chunk(request((10, 14), (20, 25)), start, count, room) == expected


def test_one_image_of_a_step_exceeds_the_budget() -> None:
    spans, each = WholeSpans(20, active=True), request((4, 12))
    scheduled = np.array([1, 1, 1])
    spans.level([each] * 3, np.array([4, 4, 30]), scheduled)
    assert scheduled.tolist() == [8, 0, 1]
    scheduled = np.array([1, 15])
    spans.level([each, request()], np.array([4, 0]), scheduled)
    assert scheduled.tolist() == [0, 15], "all rows must fit in a step"


def test_what_no_step_can_hold_is_refused() -> None:
    spans = WholeSpans(11, active=True)
    spans.check(request((4, 12)), 4)
    with pytest.raises(InvalidRequestError, match="--max-num-batched-tokens"):
        spans.check(request((4, 12)), 5)
