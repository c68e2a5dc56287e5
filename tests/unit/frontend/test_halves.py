"""The halves of a request: which message goes where, and what comes back."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from quire.core.config import SharedKV
from quire.core.cost import RooflineCost
from quire.core.messages import AddRequest, BlocksReturned, CoreOutput, StepOutputs
from quire.core.options import NOT_LENT, KVTransfer, LentBlocks, RequestInputs, RequestOptions
from quire.core.request import FinishReason, pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.frontend.client.halves import Halves
from quire.routing.halves import MESSAGE_SECONDS, most_alone
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


def step(*names: str) -> StepOutputs:
    ends = [CoreOutput(name, [1], FinishReason.LENGTH) for name in names]
    return StepOutputs(ends, None, 0.0)


def test_replicas_of_each_kind() -> None:
    halves = Halves(2, 5)
    assert (halves.prompts, halves.answers) == (0b00011, 0b11100)


def test_a_half_computes_the_prompt_alone() -> None:
    half = Halves(1, 2).begin(request("a", cache_salt="s", priority=4))
    assert half.request_id not in ("a0", "a")
    assert half.prompt_token_ids == pack_tokens([1, 2])
    assert (half.sampling_params.max_tokens, half.arrival_time) == (1, 5.0)
    options = half.inputs.options
    assert (options.cache_salt, options.priority) == ("s", 4)
    assert options.kv_transfer == KVTransfer(hands_over=True)
    assert half.inputs.eos_token_ids == ()
    assert half.inputs.second_text == 3


def test_requests_go_on_when_their_halves_end() -> None:
    halves = Halves(1, 2)
    assert halves.take(step("a0")) == []
    first, second = request("a", 2), request("b")
    names = [halves.begin(state).request_id for state in (first, second)]
    assert len(set(names)) == 2
    outputs = step("a0", names[1], "c")
    assert halves.take(outputs) == [(second, None)]
    assert [output.request_id for output in outputs.outputs] == ["a0", "c"]
    assert halves.take(step(names[1])) == []
    assert halves.take(step(names[0])) == [(first, None)]


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
    assert halves.take(step(*names)) == [(other, None)]


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
    assert halves.take(ended) == [(state, lent)]
    children = state.request.children
    first, other = halves.go_on(2, children, lent)
    assert first.inputs.options == RequestOptions(priority=4, kv_transfer=KVTransfer(lent=lent))
    assert (first.request_id, other) == ("a0", children[1])
    assert children[0].inputs.options.kv_transfer is None  # it may have to start again
    assert (len(ledger), sent) == (2, [])
    assert halves.go_on(2, children, None) == children
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
    assert halves.go_on(0, state.request.children, lent) == state.request.children
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
