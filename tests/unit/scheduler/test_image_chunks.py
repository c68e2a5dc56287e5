"""Chunks and images that are computed in one step."""

from __future__ import annotations

from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
from msgspec.structs import replace

from quire.core.batch import Column, ModelOutput, ReadAhead, StepTimes, token_columns
from quire.core.config import CacheConfig, SchedulerConfig, SpeculativeConfig
from quire.core.errors import InvalidRequestError
from quire.core.images import ImageSpan
from quire.core.options import RequestInputs
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.scheduler import image_chunks
from quire.scheduler.image_chunks import ImageChunks
from quire.scheduler.scheduler import Scheduler
from tests.unit.scheduler.steps import BLOCK, Tokens, sampled, step
from tests.unit.scheduler.steps import request as text

NOTHING = token_columns([])


def request(*spans: tuple[int, int]) -> Request:
    images = tuple(
        ImageSpan(first, last - first, b"%d" % first, None, (8, 8), b"a", (first, last))
        for first, last in spans
    )
    given = SamplingParams()
    inputs = RequestInputs(images=images)
    return Request("r", [1] * 40, given, arrival_time=0.0, max_model_len=64, inputs=inputs)


def plain(*images: tuple[int, int]) -> Request:
    """A prompt whose images, (start, rows), are read in any chunks."""
    spans = tuple(ImageSpan(start, rows, b"x", None, (8, 8), b"") for start, rows in images)
    asked = request()
    asked.inputs = RequestInputs(images=spans)
    return asked


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
    spans = ImageChunks(100)
    assert spans.chunk(request((10, 14), (20, 25)), start, count, room) == expected


def test_one_image_of_a_step_exceeds_the_budget() -> None:
    spans, each = ImageChunks(20), request((4, 12))
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
    ("whole", "expected"), [("image", [1, 4, 4, 10]), ("prompt", [1, 0, 0, 10])]
)
def test_beside_streams_chunks_end_before_images_that_are_not_read(
    whole: str, expected: list[int]
) -> None:
    chunks, each = ImageChunks(200), request((4, 12), (20, 28))
    if whole == "prompt":
        spans = tuple(replace(span, whole=(0, 40)) for span in each.inputs.images)
        each.inputs = RequestInputs(images=spans)
    count = 40 if whole == "prompt" else 30
    asked, wanted = [request(), each, each, plain()], np.array([1, 40, 40, 40])
    assert _leveled(chunks, asked, wanted, [1, count, count, 10]) == expected
    assert chunks.chunk(each, 0, count, 40) == expected[1], "an admitted prompt waits, too"
    wanted[0] = 2
    assert _leveled(chunks, asked, wanted, [2, count, count, 10]) == [2, count, count, 10]
    assert chunks.take(lambda: 1.0) is None, "the step reads its images whole"
    assert not chunks.is_unread(each, 4)


def test_the_image_that_is_needed_first_is_read_ahead() -> None:
    chunks, each = ImageChunks(200), request((4, 12), (20, 28))
    asked, wanted = [request(), each], np.array([1, 40])
    first, second = each.inputs.images
    for seconds, pixels in ((0.5, b"a"), (0.25, b"")):
        assert _leveled(chunks, asked, wanted, [1, 30]) == [1, 4]
        assert chunks.take(partial(float, seconds)) == ReadAhead(
            replace(first, pixels=pixels), seconds, "r"
        )
    chunks.observe(ModelOutput(NOTHING, read_ahead=first.digest))
    assert _leveled(chunks, asked, wanted, [1, 30]) == [1, 20]
    assert chunks.take(lambda: 1.0) == ReadAhead(second, 1.0, "r")
    for start, unread in ((3, False), (11, False), (12, True), (27, True), (28, False)):
        assert chunks.is_unread(each, start) is unread, start
    assert chunks.chunk(each, 24, 6, 40) == 0, "its first rows are in the prefix cache"
    chunks.observe(ModelOutput(NOTHING, read_ahead=second.digest))
    assert _leveled(chunks, asked, wanted, [1, 30]) == [1, 30]
    assert chunks.take(lambda: 1.0) is None
    given = replace(first, digest=b"other", given=True)
    each.inputs = RequestInputs(images=(given,))
    assert _leveled(chunks, asked, wanted, [1, 30]) == [1, 30], "the client has sent its rows"


def test_the_images_of_a_whole_prompt_are_read_before_it() -> None:
    chunks, each = ImageChunks(200), request((0, 4), (4, 8))
    spans = tuple(replace(span, whole=(0, 20)) for span in each.inputs.images)
    each.inputs = RequestInputs(images=spans)
    _leveled(chunks, [request()], np.array([1]), [1])
    assert chunks.is_unread(each, 0)
    assert chunks.take(lambda: 1.0) == ReadAhead(spans[0], 1.0, "r")
    chunks.observe(ModelOutput(NOTHING, read_ahead=spans[0].digest))
    _leveled(chunks, [request()], np.array([1]), [1])
    assert chunks.is_unread(each, 0), "the second is not read"
    chunks.observe(ModelOutput(NOTHING, read_ahead=spans[1].digest))
    assert not chunks.is_unread(each, 0)


def test_images_that_were_read_long_ago_are_forgotten() -> None:
    chunks, each = ImageChunks(200), request((4, 12))
    chunks.observe(ModelOutput(NOTHING, read_ahead=each.inputs.images[0].digest))
    for number in range(image_chunks._KNOWN - 1):
        chunks.observe(ModelOutput(NOTHING, read_ahead=b"other %d" % number))
    asked, wanted = [request(), each], np.array([1, 40])
    assert _leveled(chunks, asked, wanted, [1, 30]) == [1, 30]
    chunks.observe(ModelOutput(NOTHING, read_ahead=b"one more"))
    assert _leveled(chunks, asked, wanted, [1, 30]) == [1, 4]


def _leveled(
    chunks: ImageChunks, asked: list[Request], wanted: Column, given: list[int]
) -> list[int]:
    scheduled = np.array(given)
    chunks.level(asked, wanted, np.zeros(len(asked), np.int64), scheduled)
    found: list[int] = scheduled.tolist()
    return found


def test_the_image_that_exceeds_the_budget_fits_in_the_step() -> None:
    """8 rows instead of 1 beside 2 tokens of another: 10 in all, of which 3 are in the budget."""
    for most, expected in ((10, [8, 2]), (9, [0, 2])):
        scheduled = np.array([1, 2])
        asked = [request((4, 12)), request()]
        ImageChunks(most).level(asked, np.array([36, 40]), np.array([4, 0]), scheduled)
        assert scheduled.tolist() == expected


def test_who_computes_as_planned_leaves_the_budget_to_be_exceeded() -> None:
    scheduled = np.array([4, 1])
    asked = [request((4, 12)), request((4, 12))]
    ImageChunks(40).level(asked, np.array([40, 36]), np.array([0, 4]), scheduled)
    assert scheduled.tolist() == [4, 8]


def test_who_has_no_part_in_the_step_reads_no_image() -> None:
    scheduled = np.array([0, 3])
    asked = [request((4, 12)), request((4, 12))]
    ImageChunks(40).level(asked, np.array([36, 40]), np.array([4, 0]), scheduled)
    assert scheduled.tolist() == [0, 3]


def test_images_without_a_span_do_not_limit_a_step() -> None:
    ImageChunks(4).check(plain((0, 30)), 4)


def test_what_no_step_can_hold_is_refused() -> None:
    spans = ImageChunks(11)
    spans.check(request((4, 12)), 4)
    with pytest.raises(InvalidRequestError, match="--max-num-batched-tokens"):
        spans.check(request((4, 12)), 5)


def whole(name: str, rows: int) -> Request:
    """A prompt that begins with an image whose rows see each other."""
    asked = text(name, rows + 3)
    asked.inputs = RequestInputs(images=(ImageSpan(0, rows, b"", None, (8, 8), b"", (0, rows)),))
    return asked


def test_an_image_fits_beside_all_others() -> None:
    """Their pace leaves 9 tokens of the budget, and the step has room for 61 more."""
    limits = SchedulerConfig(1000, 4, 64, max_itl_stretch=4.0)
    s = Scheduler(limits, CacheConfig(BLOCK, 64), Tokens())
    for name in "abc":
        s.add(text(name, 4))
    step(s)
    with pytest.raises(InvalidRequestError, match="a step holds 61 of a prompt"):
        s.add(whole("e", 62))
    s.add(whole("d", 61))
    assert step(s)[0] == {"a": 1, "b": 1, "c": 1}, "the image is read"
    assert step(s)[0] == {"a": 1, "b": 1, "c": 1, "d": 61}


def test_an_image_waits_while_drafts_take_its_room() -> None:
    drafts = SpeculativeConfig("ngram", 3, num_speculative_tokens_per_batch_size=((1, 9, 3),))
    s = Scheduler(SchedulerConfig(1000, 4, 64, speculative=drafts), CacheConfig(BLOCK, 64))
    for name in "ab":
        s.add(text(name, 4, max_tokens=50))
    step(s)
    s.add(whole("d", 61))
    step(s)  # reads the image
    assert step(s)[0] == {"a": 1, "b": 1}
    s.abort("b")
    assert step(s)[0] == {"a": 1}
    s.abort("a")
    assert step(s)[0] == {"d": 64}


def test_the_rest_of_an_image_waits_for_a_budget() -> None:
    """32 of its rows are cached, and a step has room for the others, but others spend the pace."""
    limits = SchedulerConfig(1000, 5, 64, max_itl_stretch=4.0)
    s = Scheduler(limits, CacheConfig(BLOCK, 64), Tokens())
    for asked in (whole("d", 40), *(text(name, 4, max_tokens=50) for name in "abc")):
        s.add(asked)
        step(s)
    s.abort("d")
    s.add(text("e", 100))
    step(s)
    s.add(whole("d2", 40))
    given, _ = step(s)
    assert given.keys() == {"a", "b", "c", "e"}
    s.abort("e")
    step(s)  # reads the image
    given, _ = step(s)
    assert given["d2"] == 9


def test_an_image_waits_behind_an_admitted_text() -> None:
    """Of 64 tokens the text takes 4, and the image would need 61."""
    s = Scheduler(SchedulerConfig(1000, 4, 64), CacheConfig(BLOCK, 64))
    s.add(text("a", 4))
    s.add(whole("b", 61))
    assert step(s)[0] == {"a": 4}


def test_the_first_chunk_of_a_prompt_ends_before_its_image() -> None:
    s = Scheduler(SchedulerConfig(1000, 4, 64), CacheConfig(BLOCK, 64))
    s.add(text("a", 50))
    asked = text("b", 40)
    asked.inputs = RequestInputs(images=(ImageSpan(10, 20, b"", None, (8, 8), b"", (10, 30)),))
    s.add(asked)
    assert step(s)[0] == {"a": 50, "b": 10}


def test_later_chunks_end_before_an_image_too() -> None:
    s = Scheduler(SchedulerConfig(1000, 4, 64), CacheConfig(BLOCK, 64))
    asked = text("a", 140)
    asked.inputs = RequestInputs(images=(ImageSpan(100, 30, b"", None, (8, 8), b"", (100, 130)),))
    s.add(asked)
    assert [step(s)[0]["a"] for _ in range(3)] == [64, 36, 40]


def test_a_prompt_that_an_image_cuts_to_one_token_has_no_drafts() -> None:
    drafts = SpeculativeConfig("ngram", 3, num_speculative_tokens_per_batch_size=((1, 9, 3),))
    s = Scheduler(SchedulerConfig(1000, 4, 64, speculative=drafts), CacheConfig(BLOCK, 64))
    s.add(text("a", 4, max_tokens=50))
    step(s)
    asked = text("b", 40)
    spans = [ImageSpan(place, 1, b"%d" % place, None, (8, 8), b"") for place in range(3)]
    asked.inputs = RequestInputs(images=tuple(spans))
    s.add(asked)
    assert step(s)[0] == {"a": 1}
    assert step(s)[0] == {"a": 1, "b": 1}
    batch = s.schedule(0.0)
    assert batch.num_scheduled_tokens.tolist() == [1, 1]
    assert batch.max_new_tokens.tolist() == [4, 0]


def test_texts_overtake_a_prompt_that_waits_for_its_image() -> None:
    s = Scheduler(
        SchedulerConfig(1000, 4, 64, max_itl_stretch=4.0), CacheConfig(BLOCK, 64), Tokens()
    )
    s.add(text("a", 4, max_tokens=50))
    step(s)
    s.add(whole("d", 20))
    s.add(text("b", 4))
    batch = s.schedule(0.0)
    assert batch.request_ids == ["a", "b"]
    assert batch.read_ahead.seconds == 0.75, "a quarter of 3 s: b takes all that a's step leaves"
    s.update(batch, sampled(s, batch, 5, read_ahead=None), 0.0)
    batch = s.schedule(0.0)
    assert batch.read_ahead.seconds == 6.0, "all of it beside two streams"
    assert batch.read_ahead.image.pixels == b""
    s.update(batch, sampled(s, batch, 5), 0.0)
    assert step(s)[0].keys() == {"a", "b", "d"}
    batch = s.schedule(0.0)
    assert batch.read_ahead is None


def test_requests_that_wait_for_images_delay_no_text() -> None:
    """Forty of them hold no seat, end the queue's reach for none, and lengthen no step."""
    limits = SchedulerConfig(1000, 3, 64, max_itl_stretch=4.0)
    s = Scheduler(limits, CacheConfig(BLOCK, 64), Tokens())
    s.add(text("a", 4, max_tokens=50))
    step(s)
    for number in range(40):
        asked = text(f"i{number}", 40)
        span = ImageSpan(10, 20, b"%d" % (number % 39), None, (8, 8), b"")
        asked.inputs = RequestInputs(images=(span,))
        s.add(asked)
    batch = s.schedule(0.0)
    assert batch.request_ids == ["a"]
    s.update(batch, sampled(s, batch, 5, read_ahead=None), 0.0)
    s.add(text("b", 40, max_tokens=50))
    with pytest.MonkeyPatch.context() as patch:
        looked = Mock(wraps=s.kv.find_prefix)
        patch.setattr(s.kv, "find_prefix", looked)
        batch = s.schedule(0.0)
    assert looked.call_count <= 2, "of the first that waits, and of b"
    assert batch.request_ids == ["a", "b"]
    assert batch.num_scheduled_tokens.tolist() == [1, 3], "4 times the second of one token"
    s.update(batch, sampled(s, batch, 5, read_ahead=None), 0.0)
    assert s.stats().num_waiting == 40
    s.abort(["i1"])
    s.check_integrity()
    s.abort(["b"])
    step(s)  # reads the first image, which the last request has, too
    assert step(s)[0].keys() == {"a", "i0"}
    assert len(s._state.unread) == 37
    s.abort(["a", "i0"])
    assert step(s)[0].keys() == {"i2", "i3"}, "nothing decodes, so images are read whole"
    s.check_integrity()


@pytest.mark.parametrize("stretch", [None, 4.0])
def test_a_text_takes_half_of_the_tokens_behind_many_images(stretch: float | None) -> None:
    """Six images run; the text gets tokens at once, and neither keeps the other waiting."""
    limits = SchedulerConfig(1000, 9, 9, max_itl_stretch=stretch)
    s = Scheduler(limits, CacheConfig(BLOCK, 128), Tokens())
    s.add(text("a", 4, max_tokens=90))
    step(s)
    for number in range(6):
        asked = text(f"i{number}", 150, max_tokens=90)
        asked.inputs = RequestInputs(images=(ImageSpan(2, 9, b"%d" % number, None, (8, 8), b""),))
        s.add(asked)
    for _ in range(20):
        step(s)
    assert len(s.running) == 7
    s.add(text("b", 60, max_tokens=90))
    for _ in range(6):
        pictures, texts = _shares(step(s)[0], 8 if stretch is None else 3)
        assert 1 <= pictures <= texts + 1
    assert s.running.num_computed[-1] >= 6
    assert step(s)[0]["a"] == 1


def _shares(given: dict[str, int], most: int) -> tuple[int, int]:
    """Return the prompt tokens of images and of texts."""
    assert min(given.values()) > 0
    assert given["a"] == 1
    pictures = sum(count for name, count in given.items() if name[0] == "i")
    texts = sum(given.values()) - pictures - 1
    assert pictures + texts <= most
    return pictures, texts


def test_without_a_limit_of_the_pace_an_image_is_read_at_once() -> None:
    s = Scheduler(SchedulerConfig(1000, 4, 64), CacheConfig(BLOCK, 64))
    s.add(text("a", 4, max_tokens=50))
    step(s)
    s.add(whole("d", 20))
    batch = s.schedule(0.0)
    assert batch.read_ahead.seconds == np.inf


def test_a_step_in_which_the_tower_read_teaches_nothing() -> None:
    """Else its time would count as that of tokens."""
    s = Scheduler(
        SchedulerConfig(1000, 4, 64, max_itl_stretch=4.0), CacheConfig(BLOCK, 64), Tokens()
    )
    s.add(text("a", 4, max_tokens=50))
    scales = s._step_size._budget._mixed  # type: ignore[union-attr]
    for rows in (3, 0):
        batch = s.schedule(0.0)
        times = StepTimes(model=1.0)
        s.update(batch, sampled(s, batch, 5, times=times, encoded_tokens=rows), 0.0)
        s.abort("a")
        s.add(text("a", 4, max_tokens=50))
        assert bool(scales._count) is (rows == 0)


def test_a_step_embeds_one_image_and_texts_overtake_the_others() -> None:
    s = Scheduler(SchedulerConfig(1000, 8, 64), CacheConfig(BLOCK, 64), Tokens())
    for name in "abc":
        alone = text(name, 1)
        alone.inputs = RequestInputs(images=(ImageSpan(0, 1, name.encode(), None, (8, 8), b""),))
        s.add(alone)
    s.add(text("t", 4))
    first = s.schedule(0.0)
    assert first.request_ids == ["a", "t"]
    s.abort(["a", "t"])
    s.update(first, sampled(s, first, 5), 0.0)
    assert s.schedule(0.0).request_ids == ["b"]
