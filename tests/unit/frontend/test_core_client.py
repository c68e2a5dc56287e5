"""The core in a process of its own: start, errors, bad frames, death on either side."""

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from quire.core.errors import CheckpointError, EngineDeadError, QuireError
from quire.core.messages import AddRequest, Call, CallResult, StepOutputs
from quire.core.request import pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.frontend.client import core_client
from quire.frontend.client.core_client import ProcessClient
from quire.system.frames import FrameSocket
from quire.system.proc import oom_kills
from tests.unit.engine.fakes import engine_config

FAKE_CORE = (sys.executable, str(Path(__file__).with_name("fake_core.py")))
PATIENCE = 30.0
"""Seconds to wait on a loaded machine for what takes milliseconds."""


class Line:
    """A running core and all that it said."""

    def __init__(self) -> None:
        self.client = ProcessClient(FAKE_CORE)
        self.said: asyncio.Queue[StepOutputs | CallResult] = asyncio.Queue()
        self.death: asyncio.Future[QuireError] = asyncio.get_running_loop().create_future()

    async def start(self, name: str = "echo") -> None:
        pair = FrameSocket.pair

        def copied() -> tuple[FrameSocket, socket.socket]:
            ours, theirs = pair()
            self.as_core = FrameSocket(theirs.dup())
            return ours, theirs

        config = engine_config(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FrameSocket, "pair", copied)
            try:
                await self.client.start(config, self.said.put_nowait, self.death.set_result)
            except BaseException:
                self.as_core.close()
                raise

    async def next(self) -> StepOutputs | CallResult:
        return await asyncio.wait_for(self.said.get(), PATIENCE)

    async def call(self, method: str) -> CallResult:
        self.client.send(Call(1, method))
        result = await self.next()
        assert isinstance(result, CallResult)
        return result

    def inject(self, frame: bytes) -> None:
        """Put a frame on the line, in both directions."""
        self.client._begun.socket.send(frame)
        self.as_core.send(frame)


def test_a_core_that_the_system_refuses_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", refused)
    num_files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(
        EngineDeadError, match=r"refuses a process .*unavailable.* Raise the limits"
    ):
        ProcessClient(FAKE_CORE).begin()
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == num_files
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(EngineDeadError, match=r"refuses a folder .* Set TMPDIR"):
        ProcessClient(FAKE_CORE).begin()


def refused(*_: object, **__: object) -> None:
    raise BlockingIOError(11, "Resource temporarily unavailable")


@asynccontextmanager
async def running(name: str = "echo") -> AsyncIterator[Line]:
    line = Line()
    await line.start(name)
    try:
        yield line
    finally:
        line.client.shutdown()
        line.as_core.close()


def request(request_id: str = "r") -> AddRequest:
    return AddRequest(request_id, pack_tokens([97]), SamplingParams(max_tokens=3), time.monotonic())


async def until(condition: object) -> None:
    """Wait until `condition()` holds."""
    assert callable(condition)
    for _ in range(int(PATIENCE / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never came true")


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def test_requests_and_calls() -> None:
    async with running() as line:
        line.client.send(request())
        tokens: list[int] = []
        while len(tokens) < 3:
            step = await line.next()
            assert isinstance(step, StepOutputs)
            tokens += next(step.each()).new_token_ids
        assert bytes(tokens) == b"bcd"
        assert (await line.call("nonsense")).error is not None
        assert (await line.call("num_bad_frames")).value == 0


async def test_shutdown_leaves_nothing_behind() -> None:
    async with running() as line:
        pid, folder = line.client.pid, line.client._begun.directory
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert gone(pid)
    assert not folder.exists()
    with pytest.raises(EngineDeadError, match="shut down"):
        line.client.send(request())
    line.client.shutdown()


async def test_shutdown_in_the_middle_of_work() -> None:
    async with running("slow") as line:
        line.client.send(request())
        await line.next()
    assert not line.death.done()


async def test_errors_of_the_start_keep_their_type_and_words() -> None:
    with pytest.raises(CheckpointError, match=r"tensor x is missing\. Download it again\."):
        await Line().start("damaged")
    with pytest.raises(EngineDeadError, match="ZeroDivisionError: by zero"):
        await Line().start("bug")
    with pytest.raises(EngineDeadError, match="ended with status 3"):
        await Line().start("vanish")


async def test_cancelling_the_start_stops_the_core() -> None:
    line = Line()
    start = asyncio.create_task(line.start("hang"))
    await until(lambda: line.client._core is not None)
    pid = line.client.pid
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert gone(pid)


async def test_sigkill_of_the_core_is_noticed() -> None:
    async with running("slow") as line:
        line.client.send(request())
        os.kill(line.client.pid, signal.SIGKILL)
        error = await asyncio.wait_for(line.death, PATIENCE)
        assert isinstance(error, EngineDeadError)
        assert "SIGKILL" in str(error)
        with pytest.raises(EngineDeadError):
            line.client.send(request())


async def test_a_core_that_is_killed_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running("slow") as line:
        monkeypatch.setattr(core_client, "oom_kills", lambda: oom_kills() + 1)
        line.client.send(request())
        os.kill(line.client.pid, signal.SIGKILL)
        error = await asyncio.wait_for(line.death, PATIENCE)
        assert "memory ran out: lower --gpu-memory-utilization" in str(error)


async def test_a_core_that_was_given_up_is_not_heard_any_more() -> None:
    """Found by the soak: one that had been stopped went on, and its tokens came to requests that
    had begun again with the next one."""
    async with running("slow") as line:
        line.client.send(request())
        await line.next()
        line.client._die(EngineDeadError("It was stuck."))
        said = line.said.qsize()
        line.inject(msgspec.msgpack.encode(StepOutputs([], None, 0.0)))
        await asyncio.sleep(0.1)
        assert line.said.qsize() == said


async def test_sigterm_ends_the_core_and_sigint_does_not() -> None:
    async with running() as line:
        os.kill(line.client.pid, signal.SIGINT)
        assert (await line.call("num_bad_frames")).value == 0
        os.kill(line.client.pid, signal.SIGTERM)
        assert "with status 0" in str(await asyncio.wait_for(line.death, PATIENCE))


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's locks and /proc")
async def test_a_core_that_is_stopped_cuts_its_step() -> None:
    async with running("endless") as line:
        line.client.send(request())
        name = Path(f"/proc/{line.client.pid}/comm")
        await until(lambda: name.read_text() == "in-step\n")
        process = line.client._begun.popen
        line.client.shutdown()
        assert process.returncode == 0  # it was not killed


BAD_FRAMES = [
    b"",
    b"\xc1",
    b"\xdd\xff\xff\xff\xff",
    b"\x91" * 10**6,
    b"\x93\xa3add\xa1\xc3\xc0",  # found by fuzzing: a name that is no UTF-8
    msgspec.msgpack.encode(["add", "r"]),
    msgspec.msgpack.encode(["add", "r", [1], {"temperature": -1}, 0.0]),
    msgspec.msgpack.encode(["evil", 1]),
]


async def test_bad_frames_are_dropped_counted_and_survived() -> None:
    async with running() as line:
        for frame in BAD_FRAMES:
            line.inject(frame)
        await until(lambda: line.client.frames.num_bad == len(BAD_FRAMES))
        count = -1
        while count < len(BAD_FRAMES):
            count = (await line.call("num_bad_frames")).value
        assert count == len(BAD_FRAMES)
        line.client.send(request())
        step = await line.next()
        assert isinstance(step, StepOutputs)
        assert next(step.each()).new_token_ids == [98]


PARENT = """
import asyncio, sys
from quire.frontend.client import core_client
from quire.frontend.client.core_client import ProcessClient
sys.path.insert(0, sys.argv[1])
from tests.unit.engine.fakes import engine_config
async def main():
    client = ProcessClient(sys.argv[2:])
    await client.start(engine_config(), print, print)
    print(client.pid, client._begun.directory, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_a_core_that_was_begun_is_the_one_that_starts() -> None:
    line = Line()
    line.client.begin()
    pid = line.client.pid
    line.client.configure(engine_config("echo"))
    try:
        await line.start()
        assert line.client.pid == pid
        assert (await line.call("num_bad_frames")).value == 0
    finally:
        line.client.shutdown()


async def test_a_core_that_was_begun_in_vain_is_ended() -> None:
    client = ProcessClient(FAKE_CORE)
    client.begin()
    pid, folder = client.pid, client._begun.directory
    client.shutdown()
    client.shutdown()
    assert gone(pid)
    assert not folder.exists()


async def test_the_core_does_not_outlive_its_parent() -> None:
    root = str(Path(__file__).parents[3])
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, root, *FAKE_CORE, stdout=subprocess.PIPE
    )
    pid, folder = (await parent.stdout.readline()).decode().split()
    assert not gone(int(pid))
    parent.kill()
    await until(lambda: gone(int(pid)))
    await until(lambda: not Path(folder).exists())
    await parent.wait()


async def test_an_idle_core_sleeps() -> None:
    async with running() as line:
        process = psutil.Process(line.client.pid)
        for _ in range(int(PATIENCE)):  # its threads may still be starting
            before = process.num_ctx_switches().voluntary
            await asyncio.sleep(1.0)
            if process.num_ctx_switches().voluntary - before < 50:
                return
        raise AssertionError("it never sleeps for a second")


def test_the_front_end_never_imports_torch() -> None:
    modules = ("frontend.async_llm", "resolve.engine", "metrics.prometheus", "engine.process")
    code = "import sys\n" + "".join(f"import quire.{m}\n" for m in modules)
    code += "assert 'torch' not in sys.modules, 'torch was imported'"
    subprocess.run([sys.executable, "-c", code], check=True)


STAND_BY = """
import sys
from quire.engine.process import import_all
import_all()
before = set(sys.modules)
from quire.frontend.llm import LLM
llm = LLM(num_gpu_blocks_override=64, max_model_len=256)
late = {name for name in set(sys.modules) - before if name.startswith("quire.ops")}
assert not late, late
llm.generate("Once", use_tqdm=False)
llm.shutdown()
assert "torch" not in sys.modules
"""


def test_who_stands_by_has_imported_what_a_start_needs() -> None:
    subprocess.run([sys.executable, "-c", STAND_BY], check=True)
