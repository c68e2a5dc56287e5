"""Rows and steps that fail, tokens that come later, and what a reset of the cache forgets."""

from __future__ import annotations

import pytest

from quire.core.batch import ModelOutput, SchedulerOutput, token_columns
from quire.core.messages import CoreOutput, TokenLogprobs, pack_logprobs
from quire.core.request import FinishReason
from tests.unit.scheduler.steps import make, request, sampled, step


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
    assert outputs["a"].prompt_logprobs == [pack_logprobs(entry)] * 39


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
    entries = [TokenLogprobs([i], [-1.0], 1) for i in range(1, 40)]
    assert told["b"].prompt_logprobs == [*map(pack_logprobs, entries)]


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


def test_what_a_dropped_step_was_to_remove_is_removed_by_the_next() -> None:
    s = make()
    for name in "ac":
        s.add(request(name, 4))
    first = s.schedule(0.0)
    s.abort(["c"])
    assert s.schedule(0.0).removed == ["c"]
    s.fail(first, "the kernel crashed", 0.0)
    s.add(request("d", 4))
    assert sorted(s.schedule(0.0).removed) == ["a", "c"]
