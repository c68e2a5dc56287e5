"""Rows 36 to 38: a step that fails for one request is computed for the others, also where the next
step was scheduled before that was known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.core.dtypes import HostArray
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.frontend.llm import LLM
from quire.frontend.output.sequence import SequenceState

POISON = 66
"""The token that begins the prompt of the one who is to fail."""
PROMPTS = [{"prompt_token_ids": [first, 5, 9, 12]} for first in (60, 61, POISON, 63, 64)]
PARAMS = SamplingParams(max_tokens=12, temperature=0.8, seed=3, ignore_eos=True)


@pytest.fixture(scope="module", params=[False, True], ids=["in turn", "overlapping"])
def llm(tiny_model: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    flags: dict[str, Any] = {"num_gpu_blocks_override": 64, "enable_prefix_caching": False}
    with LLM(str(tiny_model), **flags, async_scheduling=request.param) as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[RequestOutput]:
    return llm.generate(PROMPTS, PARAMS)


@pytest.fixture(autouse=True)
def _unharmed(llm: LLM, expected: list[RequestOutput]) -> Iterator[None]:
    """Without the fault, everyone gets what they got before; it is undone by then."""
    yield
    for output, right in zip(llm.generate(PROMPTS, PARAMS), expected, strict=True):
        assert output.outputs[0].token_ids == right.outputs[0].token_ids


def runner(llm: LLM) -> Any:
    return llm._core.executor._worker._runner  # type: ignore[attr-defined]


def poisoned(llm: LLM) -> list[int]:
    """The slot of the request that is to fail, while it runs."""
    states = runner(llm).states
    return [slot for slot in states._slots.values() if states.token_ids[slot, 0] == POISON]


def assert_only_one_failed(
    llm: LLM, outputs: list[RequestOutput], expected: list[RequestOutput], why: str
) -> None:
    for output, right in zip(outputs, expected, strict=True):
        [got], [wanted] = output.outputs, right.outputs
        if output.prompt_token_ids[0] == POISON:
            assert got.finish_reason == "error"
            assert why in str(got.stop_reason)
        else:
            assert got.token_ids == wanted.token_ids
    assert llm.call("check_integrity") is None
    assert llm._core.scheduler.kv.pool.num_used == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_row_36_logits_that_are_no_numbers(
    llm: LLM, expected: list[RequestOutput], monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    model = runner(llm).model
    logits = model.logits
    states = runner(llm).states

    def damaged(hidden: HostArray) -> HostArray:
        result = logits(hidden)
        for slot in poisoned(llm):
            row = states._batch_slots.tolist().index(slot)
            result[row, 7] = value
        return result

    monkeypatch.setattr(model, "logits", damaged)
    assert_only_one_failed(llm, llm.generate(PROMPTS, PARAMS), expected, "")


def test_row_37_an_exception_in_the_forward_pass(
    llm: LLM, expected: list[RequestOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = runner(llm).model
    forward = model.forward

    def failing(inputs: Any, rows: HostArray) -> HostArray:
        states = runner(llm).states
        if set(poisoned(llm)) & set(states._batch_slots.tolist()):
            raise RuntimeError("a kernel failed")
        return forward(inputs, rows)  # type: ignore[no-any-return]

    monkeypatch.setattr(model, "forward", failing)
    outputs = llm.generate(PROMPTS, PARAMS)
    assert_only_one_failed(llm, outputs, expected, "RuntimeError: a kernel failed")


def test_row_37_an_exception_that_does_not_come_again(
    llm: LLM, expected: list[RequestOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everyone is computed again, and nobody fails."""
    model = runner(llm).model
    forward = model.forward
    calls = 0

    def failing(inputs: Any, rows: HostArray) -> HostArray:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError("a kernel failed")
        return forward(inputs, rows)  # type: ignore[no-any-return]

    monkeypatch.setattr(model, "forward", failing)
    for output, right in zip(llm.generate(PROMPTS, PARAMS), expected, strict=True):
        assert output.outputs[0].finish_reason == "length"
        assert output.outputs[0].token_ids == right.outputs[0].token_ids
    assert calls > 12


def test_row_38_an_exception_in_the_sampler(
    llm: LLM, expected: list[RequestOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = runner(llm)._sampler
    sample = sampler.sample

    def failing(logits: HostArray, batch: Any) -> Any:
        states = runner(llm).states
        if set(poisoned(llm)) & set(states._batch_slots.tolist()):
            raise ZeroDivisionError("no temperature")
        return sample(logits, batch)

    monkeypatch.setattr(sampler, "sample", failing)
    outputs = llm.generate(PROMPTS, PARAMS)
    assert_only_one_failed(llm, outputs, expected, "ZeroDivisionError: no temperature")


def test_row_38_an_exception_in_the_detokenizer(
    llm: LLM, expected: list[RequestOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_text = SequenceState._add_text
    initialize = SequenceState.__init__

    def remember(self: SequenceState, index: int, prompt: list[int], *rest: Any) -> None:
        initialize(self, index, prompt, *rest)
        if prompt[0] == POISON:
            self._matcher = POISON  # type: ignore[assignment]

    def failing(self: SequenceState, text: str) -> None:
        if self._matcher == POISON:  # type: ignore[comparison-overlap]
            raise IndexError("no such token")
        add_text(self, text)

    monkeypatch.setattr(SequenceState, "__init__", remember)
    monkeypatch.setattr(SequenceState, "_add_text", failing)
    assert_only_one_failed(llm, llm.generate(PROMPTS, PARAMS), expected, "IndexError")
