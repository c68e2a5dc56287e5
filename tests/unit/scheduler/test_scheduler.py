"""The scheduler's rules, one a test; `tests/simulation` tries them all together."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from quire.core.batch import ModelOutput, SchedulerOutput, StepTimes, token_columns
from quire.core.config import CacheConfig, SchedulerConfig
from quire.core.errors import ConfigError, InvalidRequestError
from quire.core.messages import CoreOutput, SchedulerStats, TokenLogprobs
from quire.core.options import RequestOptions
from quire.core.request import FinishReason, Request
from quire.core.sampling_params import SamplingParams
from quire.scheduler.running import RunningBatch
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.steps import NO_BLOCKS

BLOCK = 16


def make(
    num_blocks: int = 64, seqs: int = 4, budget: int = 64, policy: Any = "fcfs", **cache: Any
) -> Scheduler:
    limits = SchedulerConfig(1000, seqs, budget, policy)
    return Scheduler(limits, CacheConfig(BLOCK, num_blocks, **cache))


def request(name: str, length: int, *, priority: int = 0, **params: Any) -> Request:
    return Request(
        name,
        [ord(name[0])] * length,
        SamplingParams(**{"max_tokens": 8, **params}),
        arrival_time=0.0,
        max_model_len=1000,
        options=RequestOptions(priority),
        eos_token_ids=(0,),
    )


def step(
    s: Scheduler, token: int = 5, **result: Any
) -> tuple[dict[str, int], dict[str, CoreOutput]]:
    """Run a step in which every finished row samples `token`; (tokens given, outputs)."""
    batch = s.schedule(now=1.0)
    outputs = s.update(batch, sampled(s, batch, token, **result), now=2.0)
    s.check_integrity()
    given = dict(zip(batch.request_ids, batch.num_scheduled_tokens.tolist(), strict=True))
    return given, {o.request_id: o for o in outputs.each()}


def sampled(s: Scheduler, batch: SchedulerOutput, token: int, **result: Any) -> ModelOutput:
    """What every row whose last token is computed may sample: `token`, as often as it may."""
    ends = (batch.num_computed_tokens + batch.num_scheduled_tokens).tolist()
    rows = zip(batch.request_ids, ends, strict=True)
    done = [name in s.requests and end >= s.requests[name].num_tokens for name, end in rows]
    most = [1] * len(done) if batch.max_new_tokens is None else batch.max_new_tokens.tolist()
    tokens = [[token] * count if d else [] for d, count in zip(done, most, strict=True)]
    return ModelOutput(token_columns(tokens), **result)


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
    assert RunningBatch.share(np.array([5, 1, 5]), 4).tolist() == [2, 1, 1]


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


def test_a_row_that_fails_ends_alone_and_its_blocks_are_not_reused() -> None:
    s = make(budget=200)
    s.add(request("a", 40))
    s.add(request("b", 40))
    _, outputs = step(s, errors={"a": "NaN in the logits"})
    assert outputs["a"].finish_reason is FinishReason.ERROR
    assert outputs["a"].stop_reason == "NaN in the logits"
    assert outputs["b"].new_token_ids == [5]
    s.add(request("a", 40))
    assert step(s)[0] == {"b": 1, "a": 40}


def test_a_step_that_fails_ends_its_requests_only() -> None:
    s = make(seqs=1)
    s.add(request("a", 40))
    s.add(request("b", 40))
    batch = s.schedule(now=0.0)
    (output,) = s.fail(batch, "the kernel crashed", now=0.0).outputs
    assert (output.request_id, output.finish_reason) == ("a", FinishReason.ERROR)
    s.check_integrity()
    assert step(s)[0] == {"b": 40}


def test_a_repaired_step_puts_only_those_back_that_it_lost() -> None:
    s = make(budget=200)
    for name in "abc":
        s.add(request(name, 20))
    batch = s.schedule(now=0.0)
    s.repair(batch, ModelOutput(token_columns([[5], [5], []])), {"c"}, now=0.0)
    assert [s.requests[name].num_preemptions for name in "abc"] == [0, 0, 1]
    assert step(s)[0] == {"a": 1, "b": 1, "c": 20}  # it finds none of its blocks


@pytest.mark.parametrize("aborted", [False, True])
def test_a_failed_step_leaves_none_of_its_blocks_in_the_prefix_cache(aborted: bool) -> None:
    s = make(budget=200)
    s.add(request("a", 40, max_tokens=1))
    step(s)
    s.add(request("b", 40))
    failed = s.schedule(now=0.0)
    if aborted:
        s.abort(["b"])
    s.fail(failed, "the kernel crashed", now=0.0)
    s.add(request("a2", 40))
    s.add(request("b2", 40))
    assert step(s)[0] == {"a2": 8, "b2": 40}  # a's step did not fail


@pytest.mark.parametrize("without", [1, 2, 3])
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_first_token_that_does_not_come_is_told_of_with_a_later_step(
    without: int, ahead: int
) -> None:
    s = make()
    s.add(request("a", 4))
    flight = [s.schedule(now=0.0) for _ in range(ahead)]
    for _ in range(without):
        flight.append(s.schedule(now=0.0))
        step = flight.pop(0)
        assert s.update(step, ModelOutput(token_columns([[]])), now=0.0).outputs == []
    flight.append(s.schedule(now=1.0))
    (output,) = s.update(flight[0], ModelOutput(token_columns([[5]])), now=1.0).outputs
    assert (output.request_id, output.new_token_ids) == ("a", [5])


@pytest.mark.parametrize("max_tokens", [1, 8])
def test_prompt_logprobs_of_all_chunks_come_with_the_first_token(max_tokens: int) -> None:
    s = make(budget=16)
    s.add(request("a", 40, prompt_logprobs=0, max_tokens=max_tokens))
    entry = TokenLogprobs([97], [-1.0], 1)
    assert step(s, prompt_logprobs={"a": [entry] * 16})[1] == {}
    step(s, prompt_logprobs={"a": [entry] * 16})
    _, outputs = step(s, prompt_logprobs={"a": [entry] * 7})
    assert outputs["a"].prompt_logprobs == [entry] * 39


def test_a_prompt_of_one_token_has_no_logprobs_to_tell() -> None:
    s = make()
    s.add(request("a", 1, prompt_logprobs=0))
    assert step(s)[1]["a"].prompt_logprobs == []
    assert step(s)[1]["a"].prompt_logprobs is None


def test_a_preemption_beside_a_chunk_in_flight_tells_no_prompt_token_twice() -> None:
    """b loses its blocks to a, while a step that computes a chunk of its prompt runs."""
    s = make(num_blocks=4, seqs=2, budget=17)
    s.add(request("a", 15, max_tokens=20))
    s.add(request("b", 40, max_tokens=1, prompt_logprobs=0))
    told: dict[str, CoreOutput] = {}
    flight: list[SchedulerOutput] = []
    while s.has_unfinished():
        flight.append(s.schedule(0.0))
        if len(flight) < 2:
            continue
        batch = flight.pop(0)
        chunks = {}
        if "b" in batch.request_ids:
            entry = batch.request_ids.index("b")
            start = int(batch.num_computed_tokens[entry])
            end = min(start + int(batch.num_scheduled_tokens[entry]), 39)
            chunks["b"] = [TokenLogprobs([i], [-1.0], 1) for i in range(start + 1, end + 1)]
        outputs = s.update(batch, sampled(s, batch, 5, prompt_logprobs=chunks), 0.0)
        told |= {output.request_id: output for output in outputs.outputs}
    assert told["b"].num_preemptions == 1
    assert told["b"].prompt_logprobs == [TokenLogprobs([i], [-1.0], 1) for i in range(1, 40)]


@pytest.mark.parametrize("in_flight", [False, True])
def test_nothing_computed_before_a_reset_is_found_again(in_flight: bool) -> None:
    s = make(budget=200)
    s.add(request("a", 40, max_tokens=60))
    batch = s.schedule(0.0)
    if in_flight:
        s.reset_prefix_cache()
    s.update(batch, sampled(s, batch, 97), 0.0)
    s.reset_prefix_cache()
    for i in range(3):
        for _ in range(12):
            step(s, 97)
        s.add(request(f"a{i}", 90, max_tokens=1))
        assert step(s)[0][f"a{i}"] == (90 if i == 0 else 10)  # its own, not a's
        step(s)


def test_cached_tokens_are_those_of_the_first_admission() -> None:
    s = make(num_blocks=4)
    s.add(request("b", 16, max_tokens=1))
    step(s)
    s.add(request("a", 30, max_tokens=30))
    s.add(request("b2", 30, max_tokens=30))
    told = {}
    while s.has_unfinished():
        told |= {name: o for name, o in step(s)[1].items() if o.finish_reason}
    assert told["b2"].num_preemptions > 0
    assert told["b2"].num_cached_tokens == 16
    assert told["a"].num_cached_tokens == 0


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


class Tokens:
    """A step takes a second a token, and copies take none."""

    def seconds(
        self, num_tokens: int, num_seqs: int, context_tokens: int, attended: int | None = None
    ) -> float:
        return float(num_tokens)

    def copy_seconds(self, num_tokens: int) -> float:
        return 0.0


def test_the_budget_observes_what_a_step_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Scheduler(
        SchedulerConfig(1000, 6, 64, max_itl_stretch=4.0), CacheConfig(BLOCK, 64), Tokens()
    )
    s.add(request("a", 100))
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(s._budget, "observe", lambda *given: seen.append(given))
    for _ in range(2):
        step(s, times=StepTimes(model=2.0))
    assert seen == [([64], [0], 2.0), ([36], [64], 2.0)]


def test_a_prompt_beside_decodes_gets_what_keeps_their_pace() -> None:
    """Three decode, so that with a stretch of 4 a step may take 12 s."""
    limits = SchedulerConfig(1000, 6, 64, max_itl_stretch=4.0)
    s = Scheduler(limits, CacheConfig(BLOCK, 64), Tokens())
    for name in "abc":
        s.add(request(name, 4, max_tokens=50))
    assert step(s)[0] == {"a": 4, "b": 4, "c": 4}  # nobody has a pace to keep
    s.add(request("d", 100))
    assert step(s)[0] == {"a": 1, "b": 1, "c": 1, "d": 9}
    s.abort(["d"])
    step(s, times=StepTimes(model=3.0))  # as predicted
    s.add(request("e", 100))
    batch = s.schedule(0.0)
    assert batch.total_num_scheduled_tokens == 12
    slow = StepTimes(model=24.0)  # twice as long as predicted
    s.update(batch, sampled(s, batch, 5, times=slow), 0.0)
    assert s.schedule(0.0).total_num_scheduled_tokens == 6


def test_fewer_steps_at_once_rather_than_a_preemption() -> None:
    s = make(num_blocks=4, seqs=2)
    for name in "ab":
        s.add(request(name, 31, max_tokens=17))
    step(s)
    for _ in range(2):
        batch = s.schedule(0.0, num_steps=2)
        s.update(batch, sampled(s, batch, 5), 0.0)
        if batch.width == 1:
            break
    assert batch.width == 1
    assert s.stats().num_preemptions == 0


@pytest.mark.parametrize(
    ("length", "max_tokens", "cache", "quiet"),
    [
        (4, 50, {}, 11),  # in the twelfth step its block is full, and enters the prefix cache
        (4, 5, {}, 3),  # the fourth gives the last token
        (16, 50, {}, 0),  # the next one needs a block
        (4, 50, {"enable_prefix_caching": False}, 12),  # a full block is nothing to note
        (20, 50, {"sliding_window": 8}, 3),  # then no window reaches its first block
    ],
)
def test_steps_in_which_nothing_but_decoding_happens_are_foreseen(
    length: int, max_tokens: int, cache: dict[str, Any], quiet: int
) -> None:
    s = make(**cache)
    s.add(request("a", length, max_tokens=max_tokens))
    step(s)
    assert min(s.running.quiet, s.running.until_block) == quiet
    for left in range(quiet)[::-1]:
        batch = s.schedule(0.0)
        assert batch.new_blocks is NO_BLOCKS  # nobody has looked for any
        s.update(batch, sampled(s, batch, 5), 0.0)
        assert min(s.running.quiet, s.running.until_block) == left


@pytest.mark.parametrize("ahead", [1, 2])
def test_quiet_steps_have_the_blocks_of_others(ahead: int) -> None:
    """Five requests outgrow the cache; one scheduler forgets before each step what it foresaw."""
    seen: list[list[Any]] = [[], []]
    for forgets, steps in zip((False, True), seen, strict=True):
        s, flying = make(13, seqs=5), deque[SchedulerOutput]()
        for number, name in enumerate("abcde"):
            s.add(request(name, 9 + 4 * number, max_tokens=60))
        while s.has_unfinished():
            while len(flying) < ahead and s.has_unfinished():
                if forgets:
                    s.running.quiet = 0
                flying.append(s.schedule(0.0))
            batch = flying.popleft()
            outputs = s.update(batch, sampled(s, batch, 5), 0.0)
            s.check_integrity()
            new = batch.new_blocks.tolist()
            steps.append((batch.request_ids, new, outputs.request_ids, s.stats()))
    assert seen[0] == seen[1]
    assert s.stats().num_preemptions > 0


def test_nothing_is_foreseen_behind_a_step_of_several_tokens() -> None:
    s = make()
    s.add(request("a", 4, max_tokens=50))
    step(s)
    batch = s.schedule(0.0, num_steps=2)
    assert batch.width == 2
    assert s.running.quiet == 0


def test_nobody_holds_more_blocks_than_tokens_need() -> None:
    s = make(budget=16)
    s.add(request("a", 4 * BLOCK, max_tokens=2 * BLOCK))
    while s.has_unfinished():
        batch = s.schedule(0.0)
        computed = int(batch.num_computed_tokens[0] + batch.num_scheduled_tokens[0])
        assert s.kv.pool.num_used == -(-computed // BLOCK)
        s.update(batch, sampled(s, batch, 5), 0.0)


def test_a_request_that_just_fits_is_served() -> None:
    s = make(num_blocks=2)
    s.add(request("a", 30, max_tokens=2))
    while s.has_unfinished():
        step(s)


def test_a_row_may_end_before_the_others_of_several_steps() -> None:
    s = make(seqs=2)
    for name in "ab":
        s.add(request(name, 4, max_tokens=50))
    step(s)
    batch = s.schedule(0.0, num_steps=2)
    assert batch.width == 2
    requests = dict(s.requests)
    s.update(batch, ModelOutput(token_columns([[6, -1], [7, 8]])), 0.0)
    assert list(requests["a"].token_ids[4:]) == [5, 6]
    assert list(requests["b"].token_ids[4:]) == [5, 7, 8]


def test_several_steps_at_once_are_all_computed() -> None:
    s = make()
    s.add(request("a", 4, max_tokens=50))
    step(s)
    for start in (4, 7, 10):
        batch = s.schedule(0.0, num_steps=3)
        assert batch.width == 3
        assert batch.num_computed_tokens.tolist() == [start]
        assert batch.num_scheduled_tokens.tolist() == [1]
        assert batch.total_num_scheduled_tokens == 3
        s.update(batch, sampled(s, batch, 5), 0.0)


def test_several_steps_at_once_may_take_the_last_block_and_outlast_some() -> None:
    s = make(num_blocks=3)
    s.add(request("a", BLOCK - 1, max_tokens=2))
    s.add(request("b", BLOCK - 1, max_tokens=20))
    step(s)
    s.abort(["a"])
    s.add(request("c", 4, max_tokens=2))
    step(s)  # b has its second block now
    batch = s.schedule(0.0, num_steps=4)
    assert batch.request_ids == ["b", "c"]
    assert batch.width == 4
    tight = make(num_blocks=2)
    tight.add(request("b", BLOCK - 1, max_tokens=17))
    step(tight)
    batch = tight.schedule(0.0, num_steps=4)
    assert batch.width == 4
    assert tight.kv.pool.num_free == 0


def test_nothing_is_computed_behind_a_last_token_that_is_being_sampled() -> None:
    s = make()
    s.add(request("a", 4, max_tokens=1))
    s.schedule(0.0)
    assert s.schedule(0.0).empty
