"""The scheduler's rules, one a test; `tests/simulation` tries them all together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire.core.batch import ModelOutput, token_columns
from quire.core.errors import ConfigError, InvalidRequestError
from quire.core.messages import SchedulerStats, TokenLogprobs
from quire.core.request import FinishReason
from quire.scheduler.running import RunningBatch
from tests.unit.scheduler.steps import make, request, sampled, step


def test_a_step_fills_its_budget_with_one_long_prompt_after_another() -> None:
    s = make()
    for name in "abc":
        s.add(request(name, 40))
    assert step(s)[0] == {"a": 40, "b": 24}
    assert step(s)[0] == {"a": 1, "b": 16, "c": 40}


def test_a_late_arrival_joins_the_next_step_and_a_finished_one_leaves_at_once() -> None:
    s = make(seqs=1)
    s.add(request("a", 10, max_tokens=1))
    s.add(request("b", 10, max_tokens=1))
    given, outputs = step(s)
    assert given == {"a": 10}
    assert outputs["a"].finish_reason is FinishReason.LENGTH
    assert step(s)[0] == {"b": 10}
    assert s.kv.pool.num_used == 0


def test_everyone_behind_a_long_prompt_still_gets_a_token() -> None:
    s = make(policy="priority", budget=32)
    s.add(request("b", 4, priority=1))
    s.add(request("c", 4, priority=1))
    step(s)
    s.add(request("a", 500, priority=0))
    assert step(s)[0] == {"b": 1, "c": 1, "a": 30}
    assert step(s)[0] == {"a": 30, "b": 1, "c": 1}


def test_no_request_gets_a_second_token_before_each_has_one() -> None:
    running = RunningBatch(4, 16, 1)
    running.requests = [request(name, 5) for name in "abc"]
    assert running.share(np.array([5, 1, 5]), 4).tolist() == [2, 1, 1]


def test_priority_orders_the_queue_and_ties_go_by_arrival() -> None:
    s = make(seqs=1, policy="priority")
    for name, priority in [("a", 2), ("b", 1), ("c", 1)]:
        s.add(request(name, 4, priority=priority, max_tokens=1))
    assert [next(iter(step(s)[0])) for _ in range(3)] == ["b", "c", "a"]


def test_fcfs_ignores_priority() -> None:
    s = make(seqs=1)
    s.add(request("a", 4, priority=9, max_tokens=1))
    s.add(request("b", 4, priority=0, max_tokens=1))
    assert list(step(s)[0]) == ["a"]


def test_the_budget_charges_uncached_tokens_only() -> None:
    s = make()
    s.add(request("a", 64, max_tokens=1))
    step(s)
    again = request("a2", 60)
    s.add(again)
    s.add(request("b", 40))
    given, outputs = step(s)
    assert given == {"a2": 12, "b": 40}
    assert outputs["a2"].num_cached_tokens == 48


def test_requests_of_one_step_share_a_prefix() -> None:
    s = make(budget=200)
    for name in ("a1", "a2", "a3"):
        s.add(request(name, 60))
    assert step(s)[0] == {"a1": 60, "a2": 12, "a3": 12}


def test_the_last_in_line_is_preempted_and_comes_back_with_its_output() -> None:
    s = make(num_blocks=4, enable_prefix_caching=False)
    s.add(request("a", 30, max_tokens=30))
    s.add(request("b", 30, max_tokens=30))
    for _ in range(3):
        step(s)
    batch = s.schedule(now=0.0)
    assert batch.request_ids == ["a"]
    assert batch.removed == ["b"]
    assert s.requests["b"].num_preemptions == 1
    s.update(batch, sampled(s, batch, 5), now=0.0)
    s.abort(["a"])
    batch = s.schedule(now=0.0)
    (resumed,) = batch.new_sequences
    assert list(resumed.token_ids) == [ord("b")] * 30 + [5] * 3
    assert resumed.num_prompt_tokens == 30
    assert batch.num_scheduled_tokens.tolist() == [33]
    assert s.stats().num_preemptions == 1


def test_a_long_prompt_waits_until_all_of_it_fits() -> None:
    s = make(num_blocks=8, budget=16, seqs=4)
    s.add(request("a", 100, max_tokens=1))
    s.add(request("b", 100, max_tokens=1))
    for _ in range(6):
        assert list(step(s)[0]) == ["a"]
    step(s)
    assert list(step(s)[0]) == ["b"]


def test_a_request_that_can_never_fit_is_refused() -> None:
    s = make(num_blocks=2)
    with pytest.raises(InvalidRequestError, match="whole KV cache holds 32"):
        s.add(request("a", 30, max_tokens=8))
    assert not s.has_unfinished()


def test_an_id_in_use_is_refused() -> None:
    s = make()
    s.add(request("a", 4))
    with pytest.raises(InvalidRequestError, match="already running"):
        s.add(request("a", 4))


def test_a_budget_below_the_number_of_seats_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        make(seqs=65, budget=64)


@pytest.mark.parametrize("steps_before", [0, 1, 2])
def test_abort_frees_everything_at_once(steps_before: int) -> None:
    s, a = make(seqs=1), request("a", 100)
    s.add(a)
    s.add(request("b", 4))
    for _ in range(steps_before):
        step(s)
    s.abort(["a", "b", "nobody"])
    assert a.finish_reason is FinishReason.ABORT
    s.check_integrity()
    assert s.kv.pool.num_used == 0
    assert not s.has_unfinished()
    assert s.schedule(now=0.0).removed == (["a"] if steps_before else [])


def test_an_abort_while_the_step_runs_drops_its_tokens() -> None:
    s = make()
    s.add(request("a", 4))
    batch = s.schedule(now=0.0)
    result = sampled(s, batch, 5)
    s.abort(["a"])
    assert list(s.update(batch, result, now=0.0).each()) == []
    s.check_integrity()


@pytest.mark.parametrize(
    ("params", "tokens", "reason", "stop_reason"),
    [
        ({"max_tokens": 3}, [5, 5, 5], FinishReason.LENGTH, None),
        ({}, [5, 0], FinishReason.STOP, None),
        ({"ignore_eos": True, "max_tokens": 3}, [5, 0, 5], FinishReason.LENGTH, None),
        ({"stop_token_ids": [7]}, [5, 7], FinishReason.STOP, 7),
        ({"min_tokens": 3}, [0, 0, 0], FinishReason.STOP, None),
        ({"ignore_eos": True, "stop_token_ids": [0]}, [0], FinishReason.STOP, 0),
    ],
)
def test_stopping(
    params: dict[str, Any], tokens: list[int], reason: FinishReason, stop_reason: int | None
) -> None:
    s = make()
    r = request("a", 4, **params)
    s.add(r)
    for token in tokens:
        assert not r.finished
        _, outputs = step(s, token)
    assert outputs["a"].finish_reason is reason
    assert outputs["a"].stop_reason == stop_reason
    assert list(r.token_ids[4:]) == tokens


def test_the_context_length_ends_a_request_without_max_tokens() -> None:
    s = make(budget=1024)
    s.add(request("a", 997, max_tokens=None))
    for _ in range(3):
        _, outputs = step(s)
    assert outputs["a"].finish_reason is FinishReason.LENGTH


def test_tokens_after_the_stop_are_dropped() -> None:
    s = make()
    s.add(request("a", 4))
    batch = s.schedule(now=0.0)
    entry = TokenLogprobs([5], [-1.0], 1)
    result = ModelOutput(token_columns([[5, 0, 6]]), logprobs={"a": [entry] * 3})
    (output,) = s.update(batch, result, now=0.0).outputs
    assert output.new_token_ids == [5, 0]
    assert output.logprobs == [entry, entry]


def test_a_request_of_cached_blocks_needs_only_the_others() -> None:
    """12 of 16 blocks are cached and in use, 4 are free: one for the next token, 3 for it."""
    s = make(num_blocks=16, budget=64)
    s.add(request("a", 12 * 16, max_tokens=3))
    for _ in range(3):
        step(s)
    assert s.kv.pool.num_free == 4
    s.add(request("a2", 15 * 16, max_tokens=2))
    given = s.schedule(0.0)
    assert dict(zip(given.request_ids, given.num_scheduled_tokens.tolist(), strict=True)) == {
        "a": 1,
        "a2": 48,
    }


def test_stats_say_what_there_is() -> None:
    s = make(num_blocks=8, seqs=1)
    counts = {"num_waiting": 0, "kv_blocks_total": 8, "host_tier": None}
    zero = dict.fromkeys(
        [
            "num_running",
            "kv_blocks_used",
            "prefix_cache_queries",
            "prefix_cache_hits",
            "num_preemptions",
            "num_steps",
            "step_tokens",
            "kv_blocks_cached",
        ],
        0,
    )
    assert s.stats() == SchedulerStats(**{**zero, **counts})
    for name in ("a", "a2"):
        s.add(request(name, 40, max_tokens=2))
    step(s)
    first = {"num_running": 1, "num_waiting": 1, "kv_blocks_used": 3, "prefix_cache_queries": 40}
    first |= {"num_steps": 1, "step_tokens": 40}
    assert s.stats() == SchedulerStats(**{**zero, **counts, **first})
    step(s)
    step(s)
    third = {"num_running": 1, "kv_blocks_used": 3, "prefix_cache_queries": 80, "num_steps": 3}
    third |= {"step_tokens": 40 - 32, "prefix_cache_hits": 32}
    assert s.stats() == SchedulerStats(**{**zero, **counts, **third})
    step(s)
    last = {"prefix_cache_queries": 80, "num_steps": 4, "step_tokens": 1, "kv_blocks_cached": 2}
    last |= {"prefix_cache_hits": 32}
    assert s.stats() == SchedulerStats(**{**zero, **counts, **last})
