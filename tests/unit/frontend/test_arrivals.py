"""What arrives before each step."""

from __future__ import annotations

from typing import Any

from quire.core.options import NO_OPTIONS
from quire.core.sampling_params import SamplingParams
from quire.frontend.arrivals import Arrivals
from tests.unit.engine.fakes import input_processor

PARAMS = SamplingParams(max_tokens=1)


def arrivals(prompts: list[Any], tokens_a_step: int = 10) -> Arrivals:
    requests = [(str(i), prompt, PARAMS, NO_OPTIONS) for i, prompt in enumerate(prompts)]
    return Arrivals(input_processor(), requests, tokens_a_step)


def taken(arrivals: Arrivals, *, begun: bool = False, idle: bool = False) -> list[str]:
    return [request.request_id for request in arrivals.take(begun=begun, idle=idle)]


def test_a_sixteenth_before_the_first_token_then_what_fills_a_step() -> None:
    line = arrivals(["abcd"] * 40)
    assert taken(line, idle=True) == ["0", "1"]
    assert taken(line) == []
    assert taken(line, begun=True) == ["2", "3", "4"]
    assert taken(line, begun=True) == ["5", "6", "7"]
    while line:
        assert taken(line, begun=True)


def test_long_texts_come_one_by_one() -> None:
    line = arrivals(["x" * 50] * 64)
    assert taken(line, idle=True) == ["0"]
    assert taken(line) == ["1"]
    assert taken(line, begun=True) == ["2"]


def test_token_ids_never_wait() -> None:
    line = arrivals([[97] * 50] * 5 + [{"prompt_token_ids": [98]}] * 5)
    assert taken(line) == [str(i) for i in range(10)]
    assert not line


def test_an_idle_core_gets_one_in_any_case() -> None:
    line = arrivals(["a"] * 3)
    assert taken(line, idle=True) == ["0"]
    assert taken(line, idle=False) == []
    assert taken(line, idle=True) == ["1"]
