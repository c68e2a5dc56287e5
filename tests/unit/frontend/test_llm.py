"""The offline front end over the echo model, and over a real one where it is at hand."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from quire.core.errors import ConfigError, EngineDeadError, InvalidRequestError
from quire.core.messages import StepOutputs
from quire.core.sampling_params import SamplingParams
from quire.frontend.client import configure, in_process, start
from quire.frontend.llm import LLM
from quire.frontend.workers.grammar_pool import GrammarPool
from quire.frontend.workers.structures import Structures
from tests.unit.engine.echo import load_echo
from tests.unit.engine.fakes import ByteTokenizer, resolved
from tests.unit.frontend.test_structures import FAKE, asked


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    monkeypatch.setattr(configure, "resolve", lambda *_: resolved(temperature=0.5))
    monkeypatch.setattr(start, "load_tokenizer", lambda _: ByteTokenizer())
    monkeypatch.setattr(in_process, "load_core", load_echo)
    with LLM("echo") as engine:
        yield engine


def texts(llm: LLM, prompts: Any, params: Any = None) -> list[str]:
    return [o.outputs[0].text for o in llm.generate(prompts, params)]


@pytest.mark.parametrize(
    "prompts",
    ["a", ["a"], [97], [[97]], {"prompt": "a"}, [{"prompt_token_ids": [97]}]],
)
def test_one_prompt_in_every_form(llm: LLM, prompts: Any) -> None:
    assert texts(llm, prompts, SamplingParams(max_tokens=3)) == ["bcd"]


def test_answers_are_in_the_prompts_order(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=m) for m in (9, 1, 5)]
    assert texts(llm, ["a", "b", "c"], params) == ["bcdefghij", "c", "defgh"]
    assert llm.generate([]) == []


def test_the_event_loop_runs_for_arrivals_only(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[object] = []
    run = llm._loop.run
    monkeypatch.setattr(llm._loop, "run", lambda work: (runs.append(work), run(work))[1])
    llm.generate("a", SamplingParams(max_tokens=3))
    few, runs[:] = len(runs), []
    llm.generate("a", SamplingParams(max_tokens=16))
    assert len(runs) == few


def test_n_and_stop(llm: LLM) -> None:
    [output] = llm.generate("a", SamplingParams(n=3, stop="e", max_tokens=20))
    assert [c.text for c in output.outputs] == ["bcd"] * 3
    assert not llm._core.has_work()


def test_defaults_come_from_the_model(llm: LLM) -> None:
    assert llm.get_default_sampling_params().temperature == 0.5
    assert texts(llm, "a") == ["bcdefghijklmnopq"]


def test_logprobs(llm: LLM) -> None:
    params = SamplingParams(max_tokens=2, logprobs=1, prompt_logprobs=1)
    [output] = llm.generate("xab", params)
    assert [list(p) if p else None for p in output.prompt_logprobs] == [None, [97, 33], [98, 33]]
    assert [list(p) for p in output.outputs[0].logprobs or []] == [[99, 33], [100, 33]]


def test_wrong_counts_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="sampling_params has 1 entries for 2"):
        llm.generate(["a", "b"], [SamplingParams()])
    with pytest.raises(InvalidRequestError, match="priority has 2 entries for 1"):
        llm.generate(["a"], priority=[1, 2])


@pytest.mark.parametrize(
    "wrong", [{"bad_words": 5}, {"n": "2"}, {"structured_outputs": 3}, {"structured_outputs": "x"}]
)
def test_a_field_of_the_wrong_type_is_named(llm: LLM, wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(InvalidRequestError, match=f"^{name} is"):
        llm.generate("a", SamplingParams(**wrong))
    with pytest.raises(InvalidRequestError, match="must be SamplingParams, not dict"):
        llm.add_request("a", "a", wrong)  # type: ignore[arg-type]


def test_a_bad_prompt_runs_none(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError):
        llm.generate(["a", ""])
    assert not llm._core.has_work()
    assert texts(llm, "a", SamplingParams(max_tokens=1)) == ["b"]


def test_a_text_of_too_many_tokens_runs_none(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="at least 300,"):
        llm.generate([*["a"] * 40, "a" * 300])
    assert not llm._core.has_work()
    assert llm.stats.generation_tokens == 0
    assert texts(llm, "a", SamplingParams(max_tokens=1)) == ["b"]


def test_the_first_texts_may_all_fail(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them gives a token; the others still have their turn."""

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(llm._core.executor, "execute", fail)
    outputs = llm.generate(["a"] * 40)
    assert [o.outputs[0].finish_reason for o in outputs] == ["error"] * 40


def test_unknown_arguments_get_a_did_you_mean() -> None:
    with pytest.raises(ConfigError, match="did you mean max_model_len"):
        LLM("echo", max_modellen=5)


def test_ctrl_c_waits_for_the_step_and_leaves_the_engine_clean(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = llm._core.step
    finished = []

    def interrupted() -> StepOutputs | None:
        os.kill(os.getpid(), signal.SIGINT)
        outputs = step()
        finished.append(True)
        return outputs

    monkeypatch.setattr(llm._core, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"])
    assert finished
    monkeypatch.undo()
    assert not llm._core.has_work()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert texts(llm, "a", SamplingParams(max_tokens=1)) == ["b"]


def test_a_failed_step_is_the_request_s_error(
    monkeypatch: pytest.MonkeyPatch, llm: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(llm._core.executor, "execute", fail)
    [output] = llm.generate("a")
    assert output.outputs[0].finish_reason == "error"
    assert output.outputs[0].stop_reason == "ZeroDivisionError: by zero"
    assert "step 1 failed" in caplog.text


def test_no_bar_where_nobody_watches(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"])
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_after_shutdown(llm: LLM) -> None:
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        llm.generate("a")


async def test_a_thread_that_runs_an_event_loop(llm: LLM) -> None:
    """As a notebook does: the loop waits, and goes on with the same task."""
    task, other = asyncio.current_task(), asyncio.create_task(asyncio.sleep(0, "other"))
    assert texts(llm, "a", SamplingParams(max_tokens=2)) == ["bc"]
    assert asyncio.current_task() is task
    assert await other == "other"


def test_a_structure_that_ends_its_process_is_the_caller_s_error(llm: LLM) -> None:
    llm._engine._intake.structures = Structures(GrammarPool(command=(sys.executable, "-c", FAKE)))

    def ask(regex: str) -> list[str]:
        params = SamplingParams(max_tokens=2, structured_outputs=asked(regex))
        return texts(llm, ["a", "b"], params)

    assert ask("good") == ["bc", "cd"]
    with pytest.raises(InvalidRequestError, match=r"regex cannot be served: .*SIGABRT"):
        ask("abort")
    with pytest.raises(KeyboardInterrupt):
        ask("interrupt")
    assert not llm._core.has_work()
    with pytest.raises(InvalidRequestError, match="it is wrong"):  # not the other's answer
        ask("wrong")
    assert ask("good") == ["bc", "cd"]
