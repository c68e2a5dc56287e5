"""The halves of a request: which message goes where, and what comes back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quire.core.messages import AddRequest, CoreOutput, StepOutputs
from quire.core.options import KVTransfer, RequestInputs, RequestOptions
from quire.core.request import FinishReason, pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.frontend.client.halves import Halves


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
    assert halves.take(outputs) == [second]
    assert [output.request_id for output in outputs.outputs] == ["a0", "c"]
    assert halves.take(step(names[1])) == []
    assert halves.take(step(names[0])) == [first]


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
    assert halves.take(step(*names)) == [other]


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
