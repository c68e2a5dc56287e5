"""What a step's results say of each request, and what of them others may find again."""

from __future__ import annotations

import pytest

from quire.core.batch import ModelOutput, SchedulerOutput, token_columns
from quire.core.messages import CoreOutput
from quire.core.request import FinishReason, Request
from quire.core.sampling_params import SamplingParams
from tests.unit.scheduler.test_scheduler import BLOCK, make, request, sampled, step


@pytest.mark.parametrize(("depth", "num_steps"), [(1, 1), (2, 1), (1, 4), (2, 4)])
@pytest.mark.parametrize("max_tokens", range(1, 2 * BLOCK + 3))
def test_the_next_turn_finds_what_was_computed_and_no_more(
    max_tokens: int, depth: int, num_steps: int
) -> None:
    """The last token of an answer was sampled, and nothing was computed for it."""
    s = make(budget=200)
    first = request("a", BLOCK, max_tokens=max_tokens)
    s.add(first)
    in_flight: list[SchedulerOutput] = []
    while s.has_unfinished() or in_flight:
        if s.has_unfinished():
            in_flight.append(s.schedule(0.0, num_steps))
            assert int(s.running.num_tokens[0]) <= first.num_prompt_tokens + max_tokens
        if len(in_flight) == depth or not s.has_unfinished():
            batch = in_flight.pop(0)
            s.update(batch, sampled(s, batch, 5), 0.0)
    second = Request(
        "a2", [*first.token_ids, 7, 7], SamplingParams(), arrival_time=0.0, max_model_len=1000
    )
    s.add(second)
    given, _ = step(s)
    computed = first.num_tokens - 1
    assert second.num_cached_tokens == computed // BLOCK * BLOCK
    assert given == {"a2": second.num_prompt_tokens - second.num_cached_tokens}


def test_a_pooled_request_ends_with_its_result() -> None:
    s = make()
    r = request("a", 4)
    s.add(r)
    batch = s.schedule(now=3.0)
    pooled = ModelOutput(token_columns([[]]), pooled={"a": b"vector"})
    (output,) = s.update(batch, pooled, now=4.0).outputs
    assert output == CoreOutput("a", [], FinishReason.STOP, scheduled_time=3.0, pooled=b"vector")
    assert r.finished
    assert not s.has_unfinished()
    assert s.kv.pool.num_used == 0
    s.check_integrity()


def test_an_end_tells_when_it_began_and_how() -> None:
    s = make(num_blocks=8)
    r = request("a", 20, max_tokens=2)
    s.add(r)
    step(s)
    _, outputs = step(s)
    assert outputs["a"] == CoreOutput("a", [5], FinishReason.LENGTH, scheduled_time=1.0)


def test_a_failed_row_says_why_once_and_no_token() -> None:
    s = make()
    r = request("a", 4)
    s.add(r)
    batch = s.schedule(0.0)
    result = ModelOutput(token_columns([[5]]), errors={"a": "NaN"}, pooled={"a": b""})
    (output,) = s.update(batch, result, now=0.0).each()
    assert output == CoreOutput("a", [], FinishReason.ERROR, "NaN")
    assert (r.finish_reason, r.stop_reason) == (FinishReason.ERROR, "NaN")
