"""What a step's results say of each request, and what of them others may find again."""

from __future__ import annotations

from array import array

import pytest

from quire.core.batch import ModelOutput, SchedulerOutput, token_columns
from quire.core.messages import CoreOutput, TokenLogprobs, pack_logprobs
from quire.core.options import KVTransfer, LentBlocks, RequestInputs, RequestOptions
from quire.core.request import FinishReason, Request
from quire.core.sampling_params import SamplingParams
from tests.unit.scheduler.steps import BLOCK, make, request, sampled, step


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


def test_a_first_and_a_last_token_come_with_all_facts() -> None:
    s = make(num_blocks=8)
    r = request("a", 20, max_tokens=3)
    s.add(r)
    _, first = step(s)
    r.num_draft_tokens, r.num_accepted_tokens = 7, 4
    _, middle = step(s)
    _, last = step(s)
    assert first["a"] == CoreOutput("a", [5], scheduled_time=1.0)
    assert middle["a"] == CoreOutput("a", [5])
    assert last["a"] == CoreOutput(
        "a",
        [5],
        FinishReason.LENGTH,
        scheduled_time=1.0,
        num_draft_tokens=7,
        num_accepted_tokens=4,
    )


def test_only_rows_with_more_than_tokens_come_in_full() -> None:
    s = make(seqs=9)
    for name in "abcdefghi":
        s.add(request(name, 4))
    step(s)
    entry = [TokenLogprobs([5], [-1.0], 1)]
    batch = s.schedule(0.0)
    outputs = s.update(batch, sampled(s, batch, 5, logprobs={"i": entry, "b": entry}), 0.0)
    assert [(out.request_id, out.logprobs) for out in outputs.outputs] == [
        ("b", entry),
        ("i", entry),
    ]
    assert outputs.request_ids == [*"acdefgh"]


def test_several_tokens_of_a_row_come_together() -> None:
    """Token 0 is a token like others, and -1 is none."""
    s = make()
    for name in "ab":
        s.add(request(name, 4, max_tokens=20, ignore_eos=True))
    step(s)
    batch = s.schedule(0.0, 4)
    outputs = s.update(batch, ModelOutput(token_columns([[0, 0], [0, 1, 0, 2]])), 0.0)
    s.check_integrity()
    assert (outputs.request_ids, outputs.outputs) == (["a", "b"], [])
    assert (outputs.new_token_ids, outputs.num_new_tokens) == ([0, 0, 0, 1, 0, 2], [2, 4])


def test_a_failed_row_says_why_once_and_no_token() -> None:
    s = make()
    r = request("a", 4)
    s.add(r)
    batch = s.schedule(0.0)
    result = ModelOutput(token_columns([[5]]), errors={"a": "NaN"}, pooled={"a": b""})
    (output,) = s.update(batch, result, now=0.0).each()
    assert output == CoreOutput("a", [], FinishReason.ERROR, "NaN")
    assert (r.finish_reason, r.stop_reason) == (FinishReason.ERROR, "NaN")


def test_a_prompts_logprobs_are_given_once() -> None:
    """After a preemption its prompt is computed again."""
    s = make()
    r = request("a", 4, prompt_logprobs=1, logprobs=1)
    s.add(r)
    entry = TokenLogprobs([5], [-1.0], 1)
    _, first = step(s, prompt_logprobs={"a": [entry] * 3})
    assert first["a"].prompt_logprobs == [pack_logprobs(entry)] * 3
    _, second = step(s, prompt_logprobs={"a": [entry] * 3})
    assert second["a"].prompt_logprobs is None
    assert r.prompt_logprobs == []


@pytest.mark.parametrize("hands_over", [False, True])
def test_an_ended_request_names_the_blocks_of_its_prompt(hands_over: bool) -> None:
    """To the engine that is to go on; the block of the prompt's rest is not whole."""
    s = make()
    r = request("a", 2 * BLOCK + 3, max_tokens=2 * BLOCK, stop_token_ids=[7])
    r.inputs = RequestInputs(RequestOptions(kv_transfer=KVTransfer(hands_over=hands_over)))
    s.add(r)
    _, first = step(s)
    assert first["a"].kv_blocks is None
    for _ in range(2 * BLOCK - 1):
        _, last = step(s)
    assert last["a"].finish_reason is FinishReason.LENGTH
    assert last["a"].kv_blocks == (r.block_hashes[:2] if hands_over else None)
    assert len(r.block_hashes) > 2


def test_a_prompt_s_blocks_are_lent_where_replicas_share_memory() -> None:
    s = make(8, first_block=20)
    r = request("a", 2 * BLOCK + 3, max_tokens=1)
    r.inputs = RequestInputs(RequestOptions(kv_transfer=KVTransfer(hands_over=True)))
    s.add(r)
    _, last = step(s)
    assert last["a"].kv_blocks is None
    assert last["a"].lent == LentBlocks(r.block_hashes[1], array("i", [20, 21]).tobytes())
    assert s.kv.pool.num_used == 2
    s.check_integrity()
    s.kv.loans.take_back([20, 21])
    assert s.kv.pool.num_used == 0


def test_a_block_is_found_as_soon_as_it_is_full() -> None:
    s = make()
    s.add(request("a", BLOCK - 1))
    step(s)
    step(s)
    assert int(s.running.num_computed[0]) == BLOCK
    longer = request("b", 2 * BLOCK)
    longer.token_ids[:BLOCK] = s.requests["a"].token_ids[:BLOCK]
    assert len(s.kv.find_prefix(longer)) == 1
