"""The promise that one person can read it: how many files pass a request on, from HTTP and back.

The line is what stands on the call stack, at the landmarks below, between the HTTP handler and
the plan of operations, the block, the random number or the text at its end. The last file of a
stack does the work and passes nothing on; it is a station beside the line, not on it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import httpx
import pytest

import quire.core
from quire.core.messages import AddRequest
from quire.core.request import pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.engine.core import EngineCore
from quire.executor.uniproc import UniprocExecutor
from quire.frontend.async_llm import AsyncLLM
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.server.app import create_app
from quire.system.hardware import detect

PACKAGE = Path(quire.core.__file__).parent.parent
MAX_FILES = 14
MAX_LINES = 3840
LANDMARKS = {
    "frontend/client/core_client.py:send",
    "frontend/output/stream.py:put",
    "text/detokenizer.py:append",
    "kv/block_pool.py:allocate",
    "ops/plans/plan.py:run",
    "sampling/sampler.py:sample",
}
NOT_TRACED = {"engine/process.py"}
"""The loop around the core, in the core's own process."""


class Line:
    """Collects the files that pass a request on."""

    def __init__(self) -> None:
        self.files = set(NOT_TRACED)
        self.reached: set[str] = set()

    @contextmanager
    def traced(self) -> Iterator[None]:
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (name := _name(frame)) in LANDMARKS:
            self.reached.add(name)
            end = name.partition(":")[0]
            caller = frame.f_back
            while caller is not None:
                if (above := _name(caller).partition(":")[0]) not in {"", end}:
                    self.files.add(above)
                caller = caller.f_back


def _name(frame: FrameType) -> str:
    """`room/file.py:function` of a frame of ours; "" of others."""
    file = Path(frame.f_code.co_filename)
    if not file.is_relative_to(PACKAGE):
        return ""
    return f"{file.relative_to(PACKAGE).as_posix()}:{frame.f_code.co_name}"


@pytest.fixture
def args(tiny_model: Path) -> EngineArgs:
    return EngineArgs(model=str(tiny_model), max_model_len=128, num_threads=1, ops="cpu")


async def _through_the_api(args: EngineArgs, line: Line) -> None:
    engine = await AsyncLLM.start(args)
    try:
        transport = httpx.ASGITransport(app=create_app(engine, ["tiny"]))
        async with httpx.AsyncClient(transport=transport, base_url="http://quire") as client:
            body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
            with line.traced():
                answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200
    finally:
        engine.shutdown()


def _through_the_core(args: EngineArgs, line: Line) -> None:
    config = resolve(args, detect()).config
    core = EngineCore(config, UniprocExecutor(config))
    with line.traced():
        core.add(AddRequest("a", pack_tokens([1, 2, 3]), SamplingParams(seed=0), arrival_time=0.0))
        while core.has_work():
            core.step()
    core.shutdown()


async def test_few_files_pass_a_request_on(
    args: EngineArgs, record_property: Callable[[str, object], None]
) -> None:
    line = Line()
    await _through_the_api(args, line)
    _through_the_core(args, line)
    assert line.reached == LANDMARKS
    lines = sum(len((PACKAGE / file).read_text().splitlines()) for file in line.files)
    record_property("files", sorted(line.files))
    assert len(line.files) <= MAX_FILES, "\n".join(sorted(line.files))
    assert lines <= MAX_LINES
