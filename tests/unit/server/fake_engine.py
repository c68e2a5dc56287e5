"""The real front end and scheduler around a model without weights, all in one event loop.

The model is `tests.unit.engine.fakes`': "a" is answered "bcd…z", then the end of the sequence.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
from starlette.applications import Starlette

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.config import EngineConfig
from quire.core.errors import EngineDeadError, QuireError
from quire.core.messages import CoreInput, Ready, Shutdown
from quire.engine.core import EngineCore
from quire.executor.base import ForwardError
from quire.frontend.async_llm import AsyncLLM
from quire.frontend.client.interface import DeathHandler, MessageHandler
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import Resolved
from quire.server.app import create_app
from quire.server.options import AppOptions
from quire.text.tokenizers.dummy import DummyTokenizer
from tests.unit.engine.echo import VOCAB_SIZE, EchoExecutor
from tests.unit.engine.fakes import resolved

if TYPE_CHECKING:
    import openai

MODEL = "echo"


class FaultyExecutor(EchoExecutor):
    """`EchoExecutor`, but a prompt that begins with token 7 fails its row, with 8 the step."""

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        first = {new.request_id: new.token_ids[0] for new in batch.new_sequences}
        for request_id in batch.request_ids:
            if first.get(request_id) == 8:
                raise ForwardError([], 0.0) from RuntimeError("/secret/path at 0xdeadbeef")
        output = super().execute(batch)
        for i, request_id in enumerate(batch.request_ids):
            if self.tokens[request_id][0] == 7:
                output.sampled_token_ids[i] = -1
                output.errors[request_id] = "its logits are not finite"
        return output


class LoopClient:
    """A core that steps in the caller's event loop, one step every `seconds`.

    Attributes:
        mortal: once dead, it cannot be started again.
    """

    def __init__(
        self, seconds: float = 0.0, executor: Callable[[], EchoExecutor] = FaultyExecutor
    ) -> None:
        self._executor = executor
        self.mortal = True
        self._dead = False
        self._seconds = seconds
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    separate = True
    prepared = True
    suspects: Any = SimpleNamespace(keys=(), hung=lambda: False)

    def configure(self, config: EngineConfig) -> None: ...

    def prepare(self, cpus: Sequence[int] = ()) -> None: ...

    async def start(
        self, config: EngineConfig, on_message: MessageHandler, on_death: DeathHandler
    ) -> Ready:
        if self.mortal and self._dead:
            raise EngineDeadError("The engine core has ended with status 1.")
        self.core = EngineCore(config, self._executor())
        self._on_message, self._on_death = on_message, on_death
        self._task = asyncio.create_task(self._run())
        return self.core.ready()

    def send(self, message: CoreInput) -> None:
        assert not isinstance(message, Shutdown)
        if (answer := self.core.handle(message)) is not None:
            self._on_message(answer)
        self._wake.set()

    def die(self) -> None:
        """As if the core's process had been killed."""
        self.shutdown()
        self._dead = True
        self._on_death(EngineDeadError("The engine core has ended by signal SIGKILL."))

    def end_stuck(self, error: QuireError) -> None:
        self._on_death(error)

    async def discard(self) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._seconds)
            step = self.core.step()
            if step is None:
                self._wake.clear()
            else:
                self._on_message(step)


class Running:
    """An engine, the application around it, and an HTTP client of that."""

    def __init__(self, engine: AsyncLLM, client: LoopClient, app: Starlette) -> None:
        self.engine = engine
        self.core_client = client
        self.app = app
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://test")

    @property
    def core(self) -> EngineCore:
        return self.core_client.core

    @property
    def openai_client(self) -> openai.AsyncOpenAI:
        import openai  # takes half a second

        return openai.AsyncOpenAI(
            base_url="http://test/v1", api_key="none", max_retries=0, http_client=self.http
        )

    async def complete(self, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "prompt": "a", "max_tokens": 3, "temperature": 0, **fields}
        return await self.http.post("/v1/completions", json=body)

    async def chat(self, **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "a"}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 3, "temperature": 0, **fields}
        return await self.http.post("/v1/chat/completions", json=body)


@asynccontextmanager
async def running(
    seconds: float = 0.0,
    generation_config: dict[str, Any] | None = None,
    executor: Callable[[], EchoExecutor] = FaultyExecutor,
    found: Resolved | None = None,
    **options: Any,
) -> AsyncIterator[Running]:
    """An application over a fresh engine; `options` are those of `AppOptions` and `create_app`."""
    client = LoopClient(seconds, executor)
    found = found or resolved(MODEL, **(generation_config or {}))
    engine = AsyncLLM(found, DummyTokenizer(VOCAB_SIZE), EngineArgs(), lambda: client)
    await engine.start_core()
    parts = {name: options.pop(name) for name in ("devices", "adapters") if name in options}
    app = Running(engine, client, create_app(engine, [MODEL], AppOptions(**options), **parts))
    try:
        async with app.http:
            yield app
    finally:
        engine.shutdown()
