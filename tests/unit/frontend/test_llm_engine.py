"""`LLMEngine` as vLLM's scripts drive it, over the echo model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quire import EngineArgs, LLMEngine, SamplingParams
from quire.core.errors import EngineDeadError, EngineSleepingError, InvalidRequestError
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import RequestOutputKind
from quire.frontend.client import configure, in_process, start
from tests.unit.engine.echo import load_echo
from tests.unit.engine.fakes import ByteTokenizer, resolved


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[LLMEngine]:
    monkeypatch.setattr(configure, "resolve", lambda *_: resolved())
    monkeypatch.setattr(start, "load_tokenizer", lambda _: ByteTokenizer())
    monkeypatch.setattr(in_process, "load_core", load_echo)
    with LLMEngine.from_engine_args(EngineArgs(model="echo")) as engine:
        yield engine


def steps(engine: LLMEngine) -> list[RequestOutput]:
    found: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert isinstance(output, RequestOutput)
            found.append(output)
    return found


def test_requests_join_while_others_run(engine: LLMEngine) -> None:
    assert engine.step() == []
    engine.add_request("first", "a", SamplingParams(max_tokens=4))
    begun = engine.step()
    engine.add_request("second", [120], SamplingParams(max_tokens=9))
    assert engine.get_num_unfinished_requests() == 2
    outputs = [*begun, *steps(engine)]
    ended = {o.request_id: o.outputs[0].text for o in outputs if o.finished}
    assert ended == {"first": "bcde", "second": "yz"}
    texts = [o.outputs[0].text for o in outputs if o.request_id == "first"]  # type: ignore[union-attr]
    assert texts == ["b", "bc", "bcd", "bcde"]


def test_deltas(engine: LLMEngine) -> None:
    params = SamplingParams(max_tokens=3, output_kind=RequestOutputKind.DELTA)
    engine.add_request("r", "a", params)
    assert [o.outputs[0].text for o in steps(engine)] == ["b", "c", "d"]


def test_an_aborted_request_gives_no_more(engine: LLMEngine) -> None:
    for name in ("a", "b", "c"):
        engine.add_request(name, "a", SamplingParams(max_tokens=20))
    engine.step()
    engine.abort_request("a")
    engine.abort_request(["b", "unknown"])
    assert {o.request_id for o in steps(engine)} == {"c"}
    engine.add_request("a", "a", SamplingParams(max_tokens=1))  # the id is free again
    with pytest.raises(InvalidRequestError, match="in use"):
        engine.add_request("a", "a", SamplingParams(max_tokens=1))


def test_sleeping_takes_no_request_and_drops_the_cache(engine: LLMEngine) -> None:
    prompt = list(range(65, 65 + 17))
    params = SamplingParams(max_tokens=2)

    def ask() -> RequestOutput:
        engine.add_request("r", prompt, params)
        return steps(engine)[-1]

    answer = ask().outputs[0].text
    assert ask().num_cached_tokens == 16
    engine.add_request("r", prompt, params)
    with pytest.raises(InvalidRequestError, match="1 requests are in progress"):
        engine.sleep()
    steps(engine)
    with pytest.raises(InvalidRequestError, match="level is 3; it must be 1 or 2"):
        engine.sleep(3)
    assert not engine.is_sleeping()
    engine.sleep(level=2)
    assert engine.is_sleeping()
    for call in (ask, engine.step, engine.reset_prefix_cache):
        with pytest.raises(EngineSleepingError, match=r"Call wake_up\(\) first"):
            call()
    assert not engine.has_unfinished_requests()
    engine.abort_request("r")
    with pytest.raises(InvalidRequestError, match="'gpu' is no part"):
        engine.wake_up(["gpu"])
    engine.wake_up(tags=["weights"])
    assert engine.is_sleeping()
    engine.wake_up(tags=["kv_cache"])
    assert not engine.is_sleeping()
    woken = ask()
    assert (woken.outputs[0].text, woken.num_cached_tokens) == (answer, 0)
    engine.wake_up()
    assert ask().num_cached_tokens == 16  # an engine that is awake is left as it is


def test_a_forgotten_prefix_is_computed_again(engine: LLMEngine) -> None:
    found = []
    for reset in (False, False, True):
        if reset:
            assert engine.reset_prefix_cache() is True
        engine.add_request("r", list(range(65, 65 + 17)), SamplingParams(max_tokens=1))
        found.append(steps(engine)[-1].num_cached_tokens)
    assert found == [0, 16, 0]


def test_what_runs_code_in_workers_is_refused_by_name(engine: LLMEngine) -> None:
    with pytest.raises(InvalidRequestError, match="collective_rpc runs the caller's code in vLLM"):
        engine.collective_rpc("reload_weights")
    with pytest.raises(InvalidRequestError, match="apply_model"):
        engine.apply_model(print)


def test_after_shutdown(engine: LLMEngine) -> None:
    engine.shutdown()
    for call in (engine.step, engine.sleep, engine.wake_up):
        with pytest.raises(EngineDeadError, match="shut down"):
            call()
