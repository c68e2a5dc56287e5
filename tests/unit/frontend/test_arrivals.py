"""What arrives before each step."""

from __future__ import annotations

from typing import Any

from quire.core.config import SchedulerConfig
from quire.core.options import NO_OPTIONS
from quire.frontend.arrivals import Arrivals
from tests.unit.engine.fakes import engine_config


def arrivals(prompts: list[Any], step_tokens: int = 10) -> Arrivals:
    config = engine_config().scheduler
    values = {name: getattr(config, name) for name in SchedulerConfig.__dataclass_fields__}
    scheduler = SchedulerConfig(**values | {"max_num_batched_tokens": step_tokens})
    return Arrivals([(str(i), (p, None, NO_OPTIONS)) for i, p in enumerate(prompts)], scheduler)


def taken(arrivals: Arrivals, *, begun: bool = False, idle: bool = False) -> list[str]:
    ids = []
    for request_id, (prompt, _, _) in arrivals.take(begun, idle):
        ids.append(request_id)
        arrivals.count(len(prompt))
    return ids


def test_a_sixteenth_before_the_first_token_then_what_fills_a_step() -> None:
    line = arrivals(["abcd"] * 40)
    assert taken(line, idle=True) == ["0", "1"]
    assert taken(line) == []
    assert taken(line, begun=True) == ["2", "3", "4"]
    assert taken(line, begun=True) == ["5", "6", "7"]
    while line:
        assert taken(line, begun=True)


def test_token_ids_never_wait() -> None:
    line = arrivals([[97] * 50] * 5 + [{"prompt_token_ids": [98]}] * 5)
    assert taken(line) == [str(i) for i in range(10)]
    assert not line


def test_an_idle_core_gets_one_in_any_case() -> None:
    line = arrivals(["a"] * 3)
    assert taken(line, idle=True) == ["0"]
    assert taken(line) == []
    assert taken(line, idle=True) == ["1"]
