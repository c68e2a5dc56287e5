"""Chunks and images that are computed in one step."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from quire.core.errors import InvalidRequestError
from quire.core.images import ImageSpan
from quire.core.options import RequestInputs
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.scheduler.image_chunks import ImageChunks


def request(*spans: tuple[int, int]) -> Request:
    images = tuple(
        ImageSpan(first, last - first, b"", None, (8, 8), b"", (first, last))
        for first, last in spans
    )
    given = SamplingParams()
    inputs = RequestInputs(images=images)
    return Request("r", [1] * 40, given, arrival_time=0.0, max_model_len=64, inputs=inputs)


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
    spans = ImageChunks(100, active=True)
    assert spans.chunk(request((10, 14), (20, 25)), start, count, room) == expected


def test_one_image_of_a_step_exceeds_the_budget() -> None:
    spans, each = ImageChunks(20, active=True), request((4, 12))
    scheduled = np.array([1, 1, 1])
    wanted = np.array([36, 36, 10])
    spans.level([each] * 3, wanted, np.array([4, 4, 30]), scheduled)
    assert scheduled.tolist() == [8, 0, 1]
    scheduled = np.array([1, 15])
    spans.level([each, request()], np.array([36, 40]), np.array([4, 0]), scheduled)
    assert scheduled.tolist() == [0, 15], "all rows must fit in a step"
    scheduled = np.array([1, 1, 1])
    spans.level([each] * 3, wanted, np.array([4, 30, 4]), scheduled)
    assert scheduled.tolist() == [8, 1, 0], "the others stay within the budget"


@pytest.mark.parametrize(
    ("decodes", "whole", "expected"),
    [
        (True, "image", [1, 20, 4, 4]),
        (False, "image", [2, 30, 30, 30]),
        (True, "prompt", [1, 40, 0, 0]),
    ],
)
def test_beside_text_a_step_begins_one_image(
    decodes: bool, whole: str, expected: list[int]
) -> None:
    chunks, each = ImageChunks(200, active=True), request((4, 12), (20, 28))
    if whole == "prompt":
        spans = tuple(replace(span, whole=(0, 40)) for span in each.inputs.images)
        each.inputs = RequestInputs(images=spans)
    count = 40 if whole == "prompt" else 30
    scheduled = np.array([1 if decodes else 2, count, count, count])
    wanted = np.array([1 if decodes else 2, 40, 40, 40])
    chunks.level([request(), each, each, each], wanted, np.zeros(4, np.int64), scheduled)
    assert scheduled.tolist() == expected
    if decodes and whole == "image":
        assert chunks.chunk(each, 12, 20, 20) == 8, "an admitted prompt waits, too"


def test_what_no_step_can_hold_is_refused() -> None:
    spans = ImageChunks(11, active=True)
    spans.check(request((4, 12)), 4)
    with pytest.raises(InvalidRequestError, match="--max-num-batched-tokens"):
        spans.check(request((4, 12)), 5)
