"""The halves of a request: which message goes where, and what comes back."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from quire.core.cost import RooflineCost
from quire.core.kv_sharing import SharedKV
from quire.core.messages import AddRequest, BlocksReturned, CoreOutput, StepOutputs
from quire.core.options import NOT_LENT, KVTransfer, LentBlocks, RequestInputs, RequestOptions
from quire.core.request import FinishReason, Request, pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.frontend.client.halves import Halves
from quire.routing.halves import MESSAGE_SECONDS, Ended, most_alone
from quire.routing.ledger import Ledger


def request(name: str, count: int = 1, params: SamplingParams | None = None, **options: Any) -> Any:
    """Return a stand-in for a request's state; its sequences are `name`0, `name`1, …"""
    inputs = RequestInputs(RequestOptions(**options), eos_token_ids=(7,), second_text=3)
    params = params or SamplingParams(max_tokens=9)
    children = [
        AddRequest(f"{name}{index}", pack_tokens([1, 2]), params, 5.0, inputs)
        for index in range(count)
    ]
    return SimpleNamespace(request=SimpleNamespace(children=children), replica=0)


def step(*names: str, reason: FinishReason = FinishReason.LENGTH) -> StepOutputs:
    tokens = [] if reason is FinishReason.ERROR else [1]
    ends = [CoreOutput(name, tokens, reason) for name in names]
    return StepOutputs(ends, None, 0.0)


def left(found: list[tuple[Any, Ended]]) -> list[tuple[Any, tuple[int, ...]]]:
    return [(state, ended.sampled) for state, ended in found]


def test_replicas_of_each_kind() -> None:
    halves = Halves(2, 5)
    assert (halves.prompts, halves.answers) == (0b00011, 0b11100)


def test_a_half_ends_after_the_first_token() -> None:
    state = request("a", cache_salt="s", priority=4)
    half, [whole] = Halves(1, 2).begin(state), state.request.children
    assert half.request_id not in ("a0", "a")
    options = half.inputs.options
    assert (options.cache_salt, options.priority) == ("s", 4)
    assert options.kv_transfer == KVTransfer(hands_over=True, first_only=True)
    assert whole.inputs.options.kv_transfer is None
    assert half.sampling_params == whole.sampling_params
    assert half.inputs.eos_token_ids == whole.inputs.eos_token_ids

    def end(message: AddRequest) -> int:
        made = Request(
            message.request_id, message.prompt_token_ids, message.sampling_params,
            arrival_time=0.0, max_model_len=99, inputs=message.inputs,
        )  # fmt: skip
        return made.max_total_tokens

    assert (end(half), end(whole)) == (3, 11)


def test_requests_go_on_when_their_halves_end() -> None:
    halves = Halves(1, 2)
    assert halves.take(step("a0")) == []
    first, second = request("a", 2), request("b")
    names = [halves.begin(state).request_id for state in (first, second)]
    assert len(set(names)) == 2
    outputs = step("a0", names[1], "c")
    outputs.outputs[1].kv_transfer_params = {"do_remote_prefill": True}
    assert left(halves.take(outputs)) == [(second, (1,))]
    ends = [(output.request_id, output.finish_reason) for output in outputs.outputs]
    assert ends == [("a0", FinishReason.LENGTH), ("b0", None), ("c", FinishReason.LENGTH)]
    assert outputs.outputs[1].kv_transfer_params is None  # no client has asked for it
    assert halves.take(step(names[1])) == []
    assert left(halves.take(step(names[0]))) == [(first, (1,))]


def test_a_half_that_fails_begins_again_elsewhere() -> None:
    halves, state = Halves(1, 2), request("a")
    outputs = step(halves.begin(state).request_id, reason=FinishReason.ERROR)
    [(_, ended)] = halves.take(outputs)
    assert outputs.outputs == []
    assert (ended.children, ended.sampled) == (state.request.children, ())


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_an_answer_may_end_with_its_first_token(reason: FinishReason) -> None:
    params = SamplingParams(max_tokens=1 if reason is FinishReason.LENGTH else 9)
    halves, ledger, sent = lending()
    for count in (1, 2):
        state = request("a", count, params)
        outputs = step(halves.begin(state).request_id, reason=reason)
        outputs.outputs[0].lent = LentBlocks(b"x", array("i", [3]).tobytes())
        found = halves.take(outputs)
        assert [(o.request_id, o.finish_reason) for o in outputs.outputs] == [("a0", reason)]
        for _, ended in found:
            [message] = halves.go_on(2, ended)
            assert (message.request_id, ended.sampled) == ("a1", ())
            transfer = message.inputs.options.kv_transfer
            assert transfer.lent is not None
        assert len(found) == len(ledger) == count - 1
    assert sent == [(0, BlocksReturned([3]))]


def test_aborts_go_where_the_request_is() -> None:
    halves = Halves(1, 2)
    name = halves.begin(request("a", 2)).request_id
    assert halves.abort(["b0"]) == ["b0"]
    assert halves.abort(["a0", "a1"]) == [name]
    assert halves.abort(["a0", "a1"]) == ["a0", "a1"]
    assert halves.take(step(name)) == []


def test_halves_of_a_lost_replica_are_forgotten() -> None:
    halves = Halves(2, 3)
    lost, other = request("a"), request("b")
    other.replica = 1
    names = [halves.begin(state).request_id for state in (lost, other)]
    halves.forget(0)
    assert left(halves.take(step(*names))) == [(other, (1,))]


def lending() -> tuple[Halves, Ledger, list[Any]]:
    """Return halves of replicas that share memory, and what their ledger sends."""
    sent: list[Any] = []
    ledger = Ledger(SharedKV("", 10, 0, 3), lambda *each: sent.append(each))
    return Halves(1, 3, ledger), ledger, sent


def test_the_first_sequence_brings_the_lent_blocks() -> None:
    halves, ledger, sent = lending()
    state, lent = (
        request("a", 2, priority=4),
        LentBlocks(b"y", array("i", [3, NOT_LENT, 5]).tobytes()),
    )
    ended = step(halves.begin(state).request_id)
    ended.outputs[0].lent = lent
    [(found, rest)] = halves.take(ended)
    assert (found, rest.lent, ended.outputs[0].lent) == (state, lent, None)
    children = state.request.children
    first, other = halves.go_on(2, rest)
    transfer = KVTransfer(lent=lent, sampled=(1,))
    assert first.inputs.options == RequestOptions(priority=4, kv_transfer=transfer)
    assert (first.request_id, other) == ("a0", children[1])
    assert children[0].inputs.options.kv_transfer is None  # it may have to start again
    assert (len(ledger), sent) == (2, [])
    halves.forget(2)
    assert sent == [(0, BlocksReturned([3, 5]))]


def test_blocks_that_nobody_reads_go_back() -> None:
    halves, ledger, sent = lending()
    state, lent = request("a"), LentBlocks(b"x", array("i", [3]).tobytes())
    ended = step(halves.begin(state).request_id)
    ended.outputs[0].lent = lent
    halves.abort(["a0"])
    assert halves.take(ended) == []
    assert sent == [(0, BlocksReturned([3]))]
    # Without a replica for answers, the one with the blocks goes on.
    [first] = halves.go_on(0, Ended(state.request.children, (1,), lent))
    assert first.inputs.options.kv_transfer == KVTransfer(sampled=(1,))
    assert sent[1:] == [(0, BlocksReturned([3]))]
    assert len(ledger) == 0


@pytest.mark.parametrize(
    ("state", "divided"),
    [
        (request("a"), True),
        (request("a", params=SamplingParams(prompt_logprobs=0)), False),
        (request("a", skip_reading_prefix_cache=True), False),
        (request("a", kv_transfer=KVTransfer(hands_over=True)), False),
    ],
)
def test_what_needs_a_whole_prompt_stays_together(state: Any, divided: bool) -> None:
    assert Halves(1, 2).divides(state.request.children[0]) == divided


def test_a_short_prompt_is_computed_where_it_is_answered() -> None:
    """Up to the tokens that cost one more step, the messages and the copies."""
    cost = RooflineCost(1e9, 1e5, 1e9, 0.0, 0.0, 1e10, 1e12, 1e12, 0.0)
    step, alone = cost.seconds(1, 1, 1), most_alone(cost, copied=False)
    for count, pays in ((alone, False), (alone + 1, True)):
        longer = cost.seconds(count + 1, 2, count + 1) - step
        assert (longer > step + MESSAGE_SECONDS) == pays
    assert 0 < alone < most_alone(cost, copied=True)
    fast = RooflineCost(1e9, 1e5, 1.0, 0.0, 0.0, 1e10, 1e12, 1e12, 0.0)
    assert most_alone(fast, copied=False) > 1000
