"""Structures are checked in a process that they may end: only who asked for one is told."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quire.core.errors import EngineDeadError, InvalidRequestError, StructureUnavailableError
from quire.core.structured_outputs import (
    ReasoningMarks,
    StructuredOutputsParams,
    WrittenStructure,
)
from quire.frontend.workers import grammar_pool, structures
from quire.frontend.workers import pool as workers
from quire.frontend.workers.grammar_messages import Checked, Setup
from quire.frontend.workers.grammar_pool import GrammarPool
from quire.frontend.workers.grammar_worker import _checks
from quire.frontend.workers.structures import Structures
from quire.text.grammar import new_matcher
from quire.text.grammar_writer import GrammarWriter
from quire.text.structures import structure_key
from quire.text.tokenizers.vocabulary import FIRST_SPECIAL, byte_tokenizer
from tests.matching import allowed
from tests.unit.frontend.test_core_client import gone, until

FAKE = """
import os, sys, time
from quire.core.errors import InvalidRequestError
from quire.frontend.workers import grammar_worker

def check(wanted):
    match wanted.regex:
        case "abort":
            os.abort()
        case "leave":
            os._exit(0)
        case "hang":
            while True:
                pass
        case regex if regex.startswith("sleep"):
            time.sleep(600)
        case "interrupt":
            os.kill(os.getppid(), 2)  # SIGINT: Ctrl-C while somebody waits for the answer
            time.sleep(600)
        case "memory":
            bytearray(2**31)
        case "noise":
            os.write(1, bytes([5, 0, 0, 0]) + b"hello")
        case "flood":
            os.write(1, bytes([255] * 8))
        case "killed":
            os.kill(os.getpid(), 9)
        case "wrong":
            raise InvalidRequestError("it is wrong.", param="regex")
        case "bug":
            raise ZeroDivisionError

grammar_worker.CPU_SECONDS = 0.3
sys.exit(grammar_worker.main(sys.stdin.buffer, sys.stdout.buffer, check))
"""


def asked(regex: str, field: str | None = None) -> StructuredOutputsParams:
    return StructuredOutputsParams(regex=regex, field=field)


@asynccontextmanager
async def running(code: str = FAKE) -> AsyncIterator[tuple[Structures, GrammarPool]]:
    pool = GrammarPool(command=(sys.executable, "-c", code))
    checked = Structures(pool)
    try:
        yield checked, pool
    finally:
        checked.shutdown()


async def test_what_llguidance_says() -> None:
    pool = GrammarPool({"<eos>": 2})
    checked = Structures(pool)
    try:
        await checked.check(asked("[ab]+"))
        with pytest.raises(InvalidRequestError, match="guided_regex cannot be served") as caught:
            await checked.check(asked("(", "guided_regex"))
        assert caught.value.param == "guided_regex"
        [worker] = pool._workers
        await checked.check(asked("[cd]+"))
        assert pool._workers == {worker}
    finally:
        checked.shutdown()
    assert gone(worker.process.pid)


@pytest.mark.parametrize("specials", [{}, {"<|call|>": 7, "<|end|>": 8}])
def test_marks_that_are_control_tokens_are_checked_as_such(specials: dict[str, int]) -> None:
    """As the engine core compiles them: no text can be one."""
    schema: dict[str, Any] = {"type": "object"}
    tag = {
        "structures": [{"begin": "<|call|>", "schema": schema, "end": "<|end|>"}],
        "triggers": ["<|call|>"],
    }
    params = StructuredOutputsParams(structural_tag=tag)
    own = {name: FIRST_SPECIAL + index for index, name in enumerate(specials)}
    matcher = new_matcher(byte_tokenizer(2), params, own)
    controls = [token for token in allowed(matcher) if token >= FIRST_SPECIAL]
    assert controls == ([FIRST_SPECIAL] if specials else [])
    written = _checks(Setup(specials))(params)
    assert written == GrammarWriter(params).write(specials)
    assert ("<[7]>" in written.grammars) == bool(specials)


async def test_what_is_written_for_the_core_is_remembered() -> None:
    params = StructuredOutputsParams(json={"type": "number", "minimum": 1.5})
    checked = Structures(GrammarPool())
    try:
        written = await checked.check(params)
        assert written == GrammarWriter(params).write({})
        assert written.plain is not None
        checked._pool.shutdown()
        assert await checked.check(params) == written
    finally:
        checked.shutdown()


def test_the_oldest_grammars_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structures, "KEPT_BYTES", 25)
    known = structures.KnownStructures()
    for name in "abca":
        known.learn_good(asked(name), Checked(written=WrittenStructure("x" * 6, "y" * 4)))
    assert [known.good(asked(name)) is not None for name in "abc"] == [True, False, True]
    assert known._good_bytes == 20


def num_lost(caplog: pytest.LogCaptureFixture) -> int:
    return caplog.text.count("the grammar checker ended with status")


async def test_nothing_runs_before_the_first_and_what_is_good_is_remembered() -> None:
    async with running() as (checked, pool):
        assert not pool._workers
        await checked.check(asked("good"))
        [worker] = pool._workers
        os.kill(worker.process.pid, signal.SIGKILL)
        await checked.check(asked("good", "guided_regex"))


@pytest.mark.parametrize(
    ("regex", "why"),
    [
        ("abort", "crashes its compiler.*SIGABRT"),
        ("leave", "crashes its compiler.*status 0"),
        ("hang", "takes more than"),
        ("memory", "more than 1 GiB of memory"),
        ("noise", "invalid reply"),
        ("flood", "invalid reply"),
    ],
)
async def test_a_structure_that_ends_its_process_is_not_tried_again(
    regex: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as (checked, _):
        await checked.check(asked("good"))
        for field in ("guided_regex", "structured_outputs.regex"):
            with pytest.raises(InvalidRequestError, match=f"{field} cannot be served: .*{why}"):
                await checked.check(asked(regex, field))
        behind = StructuredOutputsParams(regex=regex, reasoning=ReasoningMarks(("<",), (">",)))
        with pytest.raises(InvalidRequestError, match=why):
            await checked.check(behind)
        assert num_lost(caplog) == 1
        await checked.check(asked("better"))


async def test_a_process_that_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_pool, "ANSWER_SECONDS", 0.3)
    async with running() as (checked, pool):
        with pytest.raises(InvalidRequestError, match=r"takes more than .* or 0\.3 s"):
            await checked.check(asked("sleep"))
        assert len(pool._workers) == 1


async def test_who_comes_together_with_a_deadly_one(caplog: pytest.LogCaptureFixture) -> None:
    """All who ask for it are told by its one crash; the others are served."""
    async with running() as (checked, pool):
        texts = ["abort", "a", "abort", "hang", "b", "abort", "wrong", "c"]
        asking = [asyncio.create_task(checked.check(asked(text))) for text in texts]
        await asyncio.wait(asking)
        failed = [text for text, task in zip(texts, asking, strict=True) if task.exception()]
        assert failed == ["abort", "abort", "hang", "abort", "wrong"]
        assert num_lost(caplog) == 2
        assert len(pool._workers) == grammar_pool.MOST_PROCESSES - grammar_pool.SPARE


async def test_a_client_with_slow_structures_delays_no_other() -> None:
    async with running() as (checked, pool):
        slow = [asyncio.create_task(checked.check(asked(f"sleep{n}"))) for n in range(3)]
        await until(lambda: len(pool._workers) == 2)
        workers.CLIENT.set("another")
        for text in "abc":
            await checked.check(asked(text))
        assert not any(task.done() for task in slow)
        assert len(pool._workers) == 3
        for task in slow:
            task.cancel()


async def test_processes_that_no_question_needs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SPARE_SECONDS", 0.0)
    async with running() as (checked, pool):
        await asyncio.gather(checked.check(asked("a")), checked.check(asked("b")))
        await until(lambda: len(pool._workers) == 1)
        await checked.check(asked("c"))
        [worker] = pool._workers
        assert worker.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_what_ends_while_nobody_asks_blames_nobody(
    number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as (checked, pool):
        await checked.check(asked("a"))
        [worker] = pool._workers
        os.kill(worker.process.pid, number)
        await until(lambda: worker.process.poll() is not None)
        await checked.check(asked("b"))
        assert num_lost(caplog) == 1


async def test_what_was_ended_from_outside_is_tried_again_and_blames_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as (checked, _):
        for count in (2, 4):
            with pytest.raises(StructureUnavailableError, match="ended twice"):
                await checked.check(asked("killed"))
            assert num_lost(caplog) == count


async def test_errors_that_are_nobodys_fault(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as (checked, _):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            await checked.check(asked("bug"))
        assert num_lost(caplog) == 0
    async with running("import sys; sys.exit(3)") as (checked, _):
        for _ in range(2):
            with pytest.raises(StructureUnavailableError, match="cannot be started"):
                await checked.check(asked("a"))


async def test_who_leaves_does_not_break_the_line() -> None:
    async with running() as (checked, pool):
        await checked.check(asked("a"))
        asking = asyncio.create_task(checked.check(asked("abort")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        await checked.check(asked("b"))
        await until(lambda: not pool.num_abandoned)


async def test_structures_that_ended_the_core() -> None:
    async with running() as (checked, _):
        await checked.check(asked("a"))
        checked.blame([structure_key(asked("a"))])
        with pytest.raises(InvalidRequestError, match="ended the engine core"):
            await checked.check(asked("a"))
        assert checked.after_death(asked("a")) is not None
        assert checked.after_death(asked("b")) is None
        await checked.check(asked("b"))


async def test_after_so_many_cores_no_unknown_structure_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as (checked, _):
        await checked.check(asked("good"))
        checked.blame([])
        checked.blame([bytes([1] * 16), bytes([2] * 16)])  # of one core
        await checked.check(asked("fine"))
        for number in range(structures.MOST_DEATHS - 1):
            checked.blame([bytes([number] * 16)])
        await checked.check(asked("good"))
        with pytest.raises(StructureUnavailableError, match="new structures are refused") as caught:
            await checked.check(asked("new", "guided_regex"))
        assert caught.value.param == "guided_regex"
        assert isinstance(checked.after_death(asked("good")), StructureUnavailableError)
        monkeypatch.setattr(structures, "HOLD_SECONDS", 0.0)
        await checked.check(asked("new"))


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structures, "CHECKED_KEPT", 2)
    monkeypatch.setattr(structures, "DEADLY_KEPT", 2)
    async with running() as (checked, _):
        for text in "abc":
            await checked.check(asked(text))
        assert len(checked._known._good) == 2
        checked.blame([structure_key(asked(text)) for text in "xyz"])
        assert [checked.refusal(asked(text)) is None for text in "xyz"] == [True, False, False]


async def test_after_shutdown() -> None:
    async with running() as (checked, pool):
        asking = asyncio.create_task(checked.check(asked("sleep")))
        await until(lambda: pool._workers and not pool._idle and not pool._turns._waiting)
        [worker] = pool._workers
        checked.shutdown()
        with pytest.raises(EngineDeadError):
            await asking
        with pytest.raises(EngineDeadError):
            await checked.check(asked("a"))
        assert gone(worker.process.pid)


async def test_who_leaves_the_queue_is_not_checked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One process hangs on the structure of a client that has left; the next does not wait."""
    monkeypatch.setattr(workers, "ABANDONED_SECONDS", 0.05)
    monkeypatch.setattr(grammar_pool, "MOST_PROCESSES", 2)
    async with running() as (checked, pool):
        await checked.check(asked("a"))
        tasks = [asyncio.create_task(checked.check(asked("sleep")))]
        await until(lambda: not pool._idle)
        tasks += [asyncio.create_task(checked.check(asked(f"killed{i}"))) for i in range(20)]
        tasks += [asyncio.create_task(checked.check(asked("sleep")))]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await until(lambda: pool.num_abandoned == 1)
        assert checked.num_abandoned == 1
        await checked.check(asked("b"))
        assert checked.num_abandoned == 0
        assert not checked._running
        assert not checked._num_waiting
        assert num_lost(caplog) == 0


async def test_one_of_two_who_ask_for_the_same_may_leave() -> None:
    async with running() as (checked, _):
        first, second = (asyncio.create_task(checked.check(asked("a"))) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert first.cancelled()
