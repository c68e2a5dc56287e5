"""A client that goes takes its request with it."""

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from quire.server.http.connection import while_connected
from tests.unit.frontend.test_core_client import until
from tests.unit.server.fake_engine import Running, running


class Connection:
    """One ASGI request whose client leaves when `leave` is called."""

    def __init__(self, app: Running, path: str, **fields: Any) -> None:
        self.sent: list[Message] = []
        self.got_body = asyncio.Event()
        self._left = asyncio.Event()
        body = json.dumps({"max_tokens": None, "temperature": 0, **fields}).encode()
        self._messages: list[Message] = [{"type": "http.request", "body": body}]
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        scope |= {"query_string": b"", "root_path": "", "scheme": "http", "server": ("test", 80)}
        self.task = asyncio.create_task(app.app(scope, self._receive, self._send))

    def leave(self) -> None:
        self._left.set()

    async def _receive(self) -> Message:
        if self._messages:
            return self._messages.pop(0)
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body":
            self.got_body.set()


async def settled(app: Running) -> None:
    """Wait until the core has dropped everything; one step is enough."""
    assert app.engine.num_unfinished == 0
    await until(lambda: not app.core.scheduler.has_unfinished())
    assert app.core.scheduler.stats().kv_blocks_used == 0
    app.core.call("check_integrity", [])


CHAT = {"messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "{"}),
        ("/v1/completions", {"prompt": ["{", "|"]}),
        ("/v1/chat/completions", CHAT),
    ],
)
async def test_leaving_a_stream_aborts(path: str, fields: dict[str, Any], n: int) -> None:
    async with running(seconds=0.01) as app:
        connection = Connection(app, path, **fields, n=n, stream=True, ignore_eos=True)
        await connection.got_body.wait()
        connection.leave()
        await connection.task
        await settled(app)
        assert app.engine.stats.finished["abort"] == n * len(fields.get("prompt", "a"))
        assert not any(m.get("body") == b"data: [DONE]\n\n" for m in connection.sent)


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_before_the_first_token_aborts(stream: bool) -> None:
    async with running(seconds=0.2) as app:
        connection = Connection(app, "/v1/completions", prompt="{", stream=stream)
        await until(lambda: app.engine.num_unfinished == 1)
        connection.leave()
        await connection.task
        await settled(app)


async def test_leaving_without_a_stream_aborts() -> None:
    async with running(seconds=0.01) as app:
        connection = Connection(app, "/v1/completions", prompt="{", n=2, ignore_eos=True)
        await until(lambda: app.engine.num_unfinished == 1)
        connection.leave()
        await connection.task
        await settled(app)


async def test_the_engines_death_ends_a_stream_with_an_event() -> None:
    async with running(seconds=0.01) as app:
        connection = Connection(app, "/v1/completions", prompt="{", stream=True, ignore_eos=True)
        await connection.got_body.wait()
        app.core_client.die()
        await connection.task
        *_, error, done = [m["body"] for m in connection.sent if m["type"].endswith("body")]
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "engine_restarting"
        assert done == b"data: [DONE]\n\n"


async def test_while_connected() -> None:
    async def never() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def work() -> int:
        return 3

    ended = asyncio.Event()

    async def long() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    assert await while_connected(work(), never) == 3
    with pytest.raises(ClientDisconnect):
        await while_connected(long(), gone)
    assert ended.is_set()
