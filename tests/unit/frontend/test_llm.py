"""The offline front end over the echo model, and over a real one where it is at hand."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from quire.core.errors import ConfigError, EngineDeadError, InvalidRequestError
from quire.core.messages import StepOutputs
from quire.core.sampling_params import SamplingParams
from quire.frontend import llm_engine
from quire.frontend.llm import LLM
from tests.unit.engine.fakes import ByteTokenizer, load_echo, resolved


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    monkeypatch.setattr(llm_engine, "resolve", lambda *_: resolved(temperature=0.5))
    monkeypatch.setattr(llm_engine, "load_tokenizer", lambda _: ByteTokenizer())
    monkeypatch.setattr(llm_engine, "load_core", load_echo)
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
    assert output.prompt_logprobs is not None
    assert [list(p) if p else None for p in output.prompt_logprobs] == [None, [97, 33], [98, 33]]
    assert [list(p) for p in output.outputs[0].logprobs or []] == [[99, 33], [100, 33]]


def test_wrong_counts_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="sampling_params has 1 entries for 2"):
        llm.generate(["a", "b"], [SamplingParams()])
    with pytest.raises(InvalidRequestError, match="priority has 2 entries for 1"):
        llm.generate(["a"], priority=[1, 2])


def test_a_bad_prompt_runs_none(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError):
        llm.generate(["a", ""])
    assert not llm._core.has_work()
    assert texts(llm, "a", SamplingParams(max_tokens=1)) == ["b"]


def test_texts_become_tokens_while_the_first_run(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenized = []
    encode = llm._input.tokenizer.encode

    def counted(text: str, add_special_tokens: bool = True) -> list[int]:
        tokenized.append(text)
        return encode(text, add_special_tokens)

    step = llm._core.step
    at_first_token = []

    def watched() -> StepOutputs | None:
        outputs = step()
        if outputs is not None and (outputs.outputs or outputs.request_ids):
            at_first_token.append(len(tokenized))
        return outputs

    monkeypatch.setattr(llm._input.tokenizer, "encode", counted)
    monkeypatch.setattr(llm._core, "step", watched)
    prompts = [chr(97 + i % 20) * (1 + i % 9) for i in range(256)]
    found = texts(llm, prompts, SamplingParams(max_tokens=3))
    assert 0 < at_first_token[0] < 0.1 * 256
    assert tokenized == prompts
    monkeypatch.undo()
    ids = [{"prompt_token_ids": [*p.encode()]} for p in prompts]
    assert found == texts(llm, ids, SamplingParams(max_tokens=3))


def test_a_text_of_too_many_tokens_ends_the_call_and_leaves_the_engine_clean(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="at least 300,"):
        llm.generate([*["a"] * 40, "a" * 300])
    assert not llm._core.has_work()
    assert llm.stats.generation_tokens > 0  # those before it had begun
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
