"""`LLM` has its structures checked in a process that they may end: the user's own goes on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from quire.core.errors import InvalidRequestError, StructureUnavailableError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.frontend.workers import grammar_process
from quire.frontend.workers.grammar_process import GrammarProcess
from tests.unit.frontend.test_core_client import gone
from tests.unit.frontend.test_structures import FAKE, asked


@contextmanager
def running(code: str = FAKE) -> Iterator[GrammarProcess]:
    checked = GrammarProcess(command=(sys.executable, "-c", code))
    try:
        yield checked
    finally:
        checked.shutdown()


def pid(checked: GrammarProcess) -> int:
    assert checked._line is not None
    return checked._line.process.pid


def test_what_llguidance_says() -> None:
    checked = GrammarProcess({"<eos>": 2})
    try:
        checked.check(asked("[ab]+"))
        worker = pid(checked)
        with pytest.raises(InvalidRequestError, match="guided_regex cannot be served") as caught:
            checked.check(asked("(", "guided_regex"))
        assert caught.value.param == "guided_regex"
        checked.check(asked("[cd]+"))
        assert pid(checked) == worker
    finally:
        checked.shutdown()
    assert gone(worker)


@pytest.mark.parametrize(
    ("regex", "why"),
    [
        ("abort", "crashes its compiler.*SIGABRT"),
        ("hang", "takes more than"),
        ("memory", "more than 1 GiB of memory"),
        ("noise", "nonsense"),
        ("flood", "nonsense"),
    ],
)
def test_a_structure_that_ends_its_process_is_not_tried_again(regex: str, why: str) -> None:
    with running() as checked:
        assert checked._line is None
        checked.check(asked("good"))
        with pytest.raises(InvalidRequestError, match=f"regex cannot be served: .*{why}"):
            checked.check(asked(regex))
        assert checked._line is None
        with pytest.raises(InvalidRequestError, match=why):
            checked.check(asked(regex))
        checked.check(asked("good"))
        assert checked._line is None  # both were known
        checked.check(asked("better"))


def test_what_is_no_fault_of_a_structure() -> None:
    with running() as checked:
        checked.check(asked("good"))
        os.kill(pid(checked), signal.SIGKILL)
        checked.check(asked("better"))
        with pytest.raises(StructureUnavailableError, match="ended twice"):
            checked.check(asked("killed"))
        with pytest.raises(InvalidRequestError, match="it is wrong"):
            checked.check(asked("wrong"))
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            checked.check(asked("bug"))
    unavailable = pytest.raises(StructureUnavailableError, match="cannot be started")
    with running("raise SystemExit") as checked, unavailable:
        checked.check(asked("good"))


def test_one_that_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_process, "ANSWER_SECONDS", 0.3)
    with running() as checked, pytest.raises(InvalidRequestError, match="was not checked in"):
        checked.check(asked("sleep"))


def test_an_answer_that_was_not_waited_for_is_nobody_elses() -> None:
    """Ctrl-C ends the process, too, or the next question would get this one's answer."""
    with running() as checked:
        checked.check(asked("good"))
        old = pid(checked)
        before = signal.signal(signal.SIGUSR2, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                checked.check(asked("interrupt"))
        finally:
            signal.signal(signal.SIGUSR2, before)
        with pytest.raises(InvalidRequestError, match="it is wrong"):
            checked.check(asked("wrong"))
        assert pid(checked) != old


def test_control_tokens_are_told() -> None:
    tag = {
        "structures": [{"begin": "<|call|>", "schema": {"type": "object"}, "end": "<|end|>"}],
        "triggers": ["<|call|>"],
    }
    checked = GrammarProcess({"<|call|>": 7, "<|end|>": 8})
    try:
        checked.check(StructuredOutputsParams(structural_tag=tag))
    finally:
        checked.shutdown()
