"""The core's process lost, or stuck: who runs again, who is told, and when it is given up."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest

from quire.core.errors import (
    EngineDeadError,
    EngineRestartingError,
    InvalidRequestError,
    ModelNotFoundError,
    StructureUnavailableError,
)
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams
from quire.frontend.async_llm import AsyncLLM
from quire.frontend.client import core_client, supervisor
from quire.frontend.client.core_client import ProcessClient
from quire.frontend.client.watchdog import TICKS, Watchdog
from quire.frontend.input.seeds import derive_seed
from quire.frontend.workers import structures
from quire.server.errors import describe
from quire.system.native_marks import make_marks
from quire.text.structures import structure_key
from tests.unit.engine.fakes import resolved
from tests.unit.frontend.test_async_llm import running, started
from tests.unit.frontend.test_core_client import FAKE_CORE, PATIENCE, gone, until
from tests.unit.server.fake_engine import LoopClient

LONG: dict[str, Any] = {"max_tokens": 200, "ignore_eos": True}
FINAL = RequestOutputKind.FINAL_ONLY
DELTA = RequestOutputKind.DELTA


def pid(engine: AsyncLLM) -> int:
    assert isinstance(engine._fleet.replicas[0].client, ProcessClient)
    return engine._fleet.replicas[0].client.pid


def kill(engine: AsyncLLM) -> None:
    client = engine._fleet.replicas[0].client
    if isinstance(client, LoopClient):
        client.die()
    else:
        os.kill(pid(engine), signal.SIGKILL)


def ask(engine: AsyncLLM, prompt: str = "a", **params: Any) -> asyncio.Task[list[RequestOutput]]:
    async def collect() -> list[RequestOutput]:
        stream = engine.generate(prompt, SamplingParams(**params))
        return [output async for output in stream]

    return asyncio.create_task(collect())


async def restored(engine: AsyncLLM, restarts: int) -> None:
    await until(lambda: engine.stats.restarts == restarts and engine.is_ready)


async def test_who_was_told_nothing_is_served_by_the_next_core() -> None:
    async with running("slow") as engine:
        first = [ask(engine, p, output_kind=FINAL, n=2, max_tokens=20) for p in "abc"]
        await until(lambda: engine.stats.generation_tokens > 20)
        kill(engine)
        await until(lambda: engine.error is not None)
        assert isinstance(engine.error, EngineRestartingError)
        assert not engine.is_ready
        with pytest.raises(EngineRestartingError):
            await ask(engine)
        with pytest.raises(EngineRestartingError):
            await engine.call("num_bad_frames")
        for task, prompt in zip(first, "abc", strict=True):
            [output] = await asyncio.wait_for(task, PATIENCE)
            expected = bytes(range(ord(prompt) + 1, ord(prompt) + 21)).decode()
            assert [c.text for c in output.outputs] == [expected] * 2
        assert (engine.stats.restarts, engine.stats.retried) == (1, 3)
        assert await engine.call("check_integrity") is None
        story = engine.timelines.find(lambda t: True)[0].story()
        assert "retried" in [line.kind for line in story]


async def test_who_was_told_something_gets_the_error_and_the_others_wait() -> None:
    async with running("slow") as engine:
        told = engine.generate("a", SamplingParams(**LONG, output_kind=DELTA))
        await anext(told)
        untold = ask(engine, "b", output_kind=FINAL, max_tokens=3)
        call = asyncio.create_task(engine.call("check_integrity"))
        os.kill(pid(engine), signal.SIGSTOP)  # so that none of them is answered before
        await until(lambda: engine.num_unfinished == 2)
        kill(engine)
        with pytest.raises(EngineRestartingError):
            [output async for output in told]
        [output] = await asyncio.wait_for(untold, PATIENCE)
        assert output.outputs[0].text == "cde"
        with pytest.raises(EngineRestartingError):
            await call
        assert engine.num_unfinished == 0
        assert engine.stats.finished["error"] == 1


async def test_seeds_that_are_drawn_do_not_begin_again_with_the_next_core() -> None:
    async with running("slow", process=False) as engine:
        seeds: list[int | None] = []

        async def draw() -> None:
            stream = engine.generate("a", SamplingParams(temperature=1.0, max_tokens=50))
            await anext(stream)
            [state] = engine._output.states()
            seeds.append(state.request.children[0].sampling_params.seed)
            await stream.aclose()

        for restarts in range(2):
            await draw()
            await draw()
            kill(engine)
            await restored(engine, restarts + 1)
        await draw()
        assert len(set(seeds)) == 5
        assert seeds == [derive_seed(0, i) for i in range(5)]


async def test_a_request_is_retried_once() -> None:
    async with running("slow", process=False) as engine:
        request = ask(engine, output_kind=FINAL, **LONG)
        await until(lambda: engine.num_unfinished == 1)
        kill(engine)
        await restored(engine, 1)
        kill(engine)
        with pytest.raises(EngineRestartingError):
            await asyncio.wait_for(request, PATIENCE)


async def structured(engine: AsyncLLM, regex: str) -> asyncio.Task[list[RequestOutput]]:
    """A request under way whose structure native code is said to be at."""
    wanted = StructuredOutputsParams(regex=regex)
    before = engine.num_unfinished
    request = ask(engine, output_kind=FINAL, structured_outputs=wanted, **LONG)
    await until(lambda: engine.num_unfinished == before + 1)
    assert isinstance(engine._fleet.replicas[0].client, ProcessClient)
    [mark] = make_marks(str(engine._fleet.replicas[0].client.suspects.path), 0, 1)
    mark.enter(structure_key(wanted))
    return request


async def test_whose_structure_crashed_the_core_is_told_and_not_retried() -> None:
    async with running("slow") as engine:
        request = await structured(engine, "[a-z]+")
        other = ask(engine, "b", output_kind=FINAL, max_tokens=20)
        await until(lambda: engine.num_unfinished == 2)
        os.kill(pid(engine), signal.SIGSEGV)
        with pytest.raises(InvalidRequestError, match=r"regex cannot be served: .* engine core"):
            await asyncio.wait_for(request, PATIENCE)
        [output] = await asyncio.wait_for(other, PATIENCE)
        assert output.outputs[0].text == "cdefghijklmnopqrstuv"
        await restored(engine, 1)
        wanted = StructuredOutputsParams(regex="[a-z]+")
        with pytest.raises(InvalidRequestError, match="engine core"):
            await ask(engine, structured_outputs=wanted)
        assert engine.stats.restarts == 1


async def test_whose_structure_it_hangs_in_is_told_though_steps_go_on() -> None:
    config = resolved("slow")
    config = replace(config, config=replace(config.config, step_timeout=2.0))
    async with started(config) as engine:
        request = await structured(engine, "[a-z]+")
        with pytest.raises(InvalidRequestError, match="engine core"):
            await asyncio.wait_for(request, PATIENCE)
        await restored(engine, 1)


async def test_a_core_that_was_killed_blames_no_structure() -> None:
    async with running("slow") as engine:
        request = await structured(engine, "[a-z]+")
        kill(engine)
        await restored(engine, 1)
        assert engine.stats.retried == 1
        request.cancel()


async def test_whoever_varies_a_deadly_structure_ends_no_more_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last death that they are allowed takes all that are under way."""
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", (0.0, 0.0, 0.0))
    async with running("slow") as engine:
        for count in range(1, structures.MOST_DEATHS + 1):
            deadly = [await structured(engine, f"[a-z]+{count}{kind}") for kind in "ab"]
            plain = ask(engine, "b", output_kind=FINAL, max_tokens=20)
            await until(lambda: engine.num_unfinished == 3)
            os.kill(pid(engine), signal.SIGSEGV)
            await restored(engine, count)
            [output] = await asyncio.wait_for(plain, PATIENCE)
            assert output.outputs[0].text == "cdefghijklmnopqrstuv"
            with pytest.raises(InvalidRequestError, match="engine core"):
                await deadly[1]
            if count < structures.MOST_DEATHS:
                deadly[0].cancel()
                await until(lambda: engine.num_unfinished == 0)
                continue
            with pytest.raises(StructureUnavailableError):
                await deadly[0]
            with pytest.raises(StructureUnavailableError):
                await ask(engine, structured_outputs=StructuredOutputsParams(regex="new"))
        [*_, last] = await ask(engine, max_tokens=3)
        assert last.outputs[0].text == "bcd"


async def test_an_abort_meanwhile_is_not_sent_on() -> None:
    async with running("slow", process=False) as engine:
        request = ask(engine, output_kind=FINAL, **LONG)
        await until(lambda: engine.num_unfinished == 1)
        kill(engine)
        await until(lambda: engine.error is not None)
        request.cancel()
        await asyncio.wait([request])
        await restored(engine, 1)
        assert engine.num_unfinished == 0
        assert await engine.call("check_integrity") is None
        assert engine.stats.scheduler.num_steps == 0  # nobody has made it step


async def test_after_so_many_in_a_row_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", (0.0, 0.01))
    monkeypatch.setattr(supervisor, "MAX_RESTARTS", 2)
    async with running(process=False) as engine:
        for count in (1, 2):
            kill(engine)
            await restored(engine, count)
        kill(engine)
        await until(lambda: type(engine.error) is EngineDeadError)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await ask(engine)


async def test_a_core_that_was_well_begins_a_new_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "HEALTHY_SECONDS", 0.0)
    monkeypatch.setattr(supervisor, "MAX_RESTARTS", 1)
    async with running(process=False) as engine:
        for count in (1, 2):
            kill(engine)
            await restored(engine, count)


async def test_a_core_that_does_not_start_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", (0.0, 0.0, 0.0))
    commands = iter([FAKE_CORE])
    async with started(resolved(), lambda: ProcessClient(next(commands, ("false",)))) as engine:
        kill(engine)
        await until(lambda: type(engine.error) is EngineDeadError)
    assert caplog.text.count("did not start") == 3


@pytest.mark.parametrize("refused", ["process", "folder", "thread"])
async def test_a_system_that_refuses_a_core_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refused: str
) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", (0.0, 0.0, 0.0))
    module, name, error = {
        "process": (subprocess, "Popen", BlockingIOError(11, "Resource temporarily unavailable")),
        "folder": (tempfile, "mkdtemp", OSError(28, "No space left on device")),
        "thread": (core_client.threading, "Thread", RuntimeError("can't start new thread")),
    }[refused]
    works = getattr(module, name)
    refusals = iter([error, error])

    def asked(*args: Any, **fields: Any) -> Any:
        if refusal := next(refusals, None):
            raise refusal
        return works(*args, **fields)

    async with running() as engine:
        with pytest.MonkeyPatch.context() as patch:
            kill(engine)
            patch.setattr(module, name, asked)
            await restored(engine, 1)
        [output] = await ask(engine, output_kind=FINAL, max_tokens=3)
        assert output.outputs[0].text == "bcd"
        assert "did not start" in caplog.text


async def test_a_model_that_is_gone_is_no_error_of_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", (0.0, 0.0, 0.0))
    async with running(process=False) as engine:
        replica = engine._fleet.replicas[0]

        async def missing() -> Any:
            raise ModelNotFoundError("There is no model at '/models/secret'.")

        monkeypatch.setattr(replica, "_start_client", missing)
        kill(engine)
        await until(lambda: type(engine.error) is EngineDeadError)
        with pytest.raises(EngineDeadError, match="does not start again: There is no model"):
            await ask(engine)
        status, body = describe(engine.error)
        assert status == HTTPStatus.SERVICE_UNAVAILABLE
        assert (body.error.code, "secret" in body.error.message) == ("engine_dead", False)


def spare(engine: AsyncLLM) -> ProcessClient | None:
    """The one that stands by."""
    client = engine._fleet._standby.client
    assert client is None or isinstance(client, ProcessClient)
    return client if client is not None and client.prepared else None


@pytest.mark.parametrize("lives", [True, False])
async def test_the_process_that_stands_by_takes_over(
    monkeypatch: pytest.MonkeyPatch, lives: bool
) -> None:
    """And where it has died as well, a new one does."""
    monkeypatch.setattr(supervisor, "STAND_BY_SECONDS", 0.0)
    async with running() as engine:
        await until(lambda: spare(engine))
        waiting = spare(engine)
        number = waiting.pid
        if not lives:
            os.kill(number, signal.SIGKILL)
            await until(lambda: waiting._begun.popen.returncode is not None)  # it is no zombie
            assert not waiting.prepared
        kill(engine)
        await restored(engine, 1)
        assert (pid(engine) == number) is lives
        [*_, last] = await ask(engine, max_tokens=3)
        assert last.outputs[0].text == "bcd"
        await until(lambda: spare(engine))
        waiting = spare(engine)
        number, folder = waiting.pid, waiting._begun.directory
    assert gone(number)
    assert not folder.exists()


async def test_shutdown_while_another_core_starts() -> None:
    async with running() as engine:
        kill(engine)
        await until(lambda: engine.error is not None)
        engine.shutdown()
        assert "shut down" in str(engine.error)


async def test_a_stuck_core_tells_its_stacks_and_is_replaced(
    capfd: pytest.CaptureFixture[str],
) -> None:
    config = resolved("slow")
    config = replace(config, config=replace(config.config, step_timeout=3.0))
    async with started(config) as engine:
        request = ask(engine, output_kind=FINAL, max_tokens=80, ignore_eos=True)
        await until(lambda: engine.num_unfinished == 1)
        os.kill(pid(engine), signal.SIGSTOP)
        [output] = await asyncio.wait_for(request, PATIENCE)
        assert len(output.outputs[0].token_ids) == 80
        assert engine.stats.restarts == 1
    err = capfd.readouterr().err
    assert "most recent call first" in err
    assert "process.py" in err


async def test_the_watchdog_barks_after_silence_only() -> None:
    barks: list[bool] = []
    busy = True
    dog = Watchdog(1e6, lambda: busy, lambda: barks.append(True))
    dog.start()
    for _ in range(2 * TICKS):
        dog._tick()
        dog.silent = 0
    for _ in range(TICKS - 1):
        dog._tick()
    assert not barks
    dog._tick()
    assert barks == [True]
    busy = False
    dog._tick()
    assert dog._timer is None
    never = Watchdog(0.0, lambda: True, lambda: barks.append(True))
    never.start()
    assert never._timer is None
