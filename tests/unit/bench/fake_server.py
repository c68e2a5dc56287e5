"""A small server that speaks OpenAI's streams, for the load generator to talk to."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Answer = Callable[[dict[str, Any]], list[str]]
"""A request's body → the data of the stream's events."""


def completion(body: dict[str, Any]) -> list[str]:
    count = body["max_tokens"]
    events = [{"choices": [{"text": f"t{i} "}]} for i in range(count)]
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": count}}
    return [*map(json.dumps, [*events, usage]), "[DONE]"]


def chat(body: dict[str, Any]) -> list[str]:
    count = body["max_tokens"]
    deltas: list[dict[str, str]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": "x"}] * count + [{}]
    events: list[Any] = [{"choices": [{"delta": delta}]} for delta in deltas]
    events.append({"choices": [], "usage": {"completion_tokens": count}})
    return [*map(json.dumps, events), "[DONE]"]


class OpenAIServer:
    """Serves model "tiny" in a thread; keeps every body it was sent."""

    def __init__(self, answer: Answer, models: list[str]) -> None:
        self.answer = answer
        self.models = models
        self.bodies: list[dict[str, Any]] = []
        self.active = 0
        self.most_active = 0
        self.forgets = False
        self.resets = 0
        self.metrics: Callable[[], bytes] = bytes
        self.profiles: list[str] = []
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split()[0])
                body = await reader.readexactly(length)
                if head.startswith(b"GET /metrics "):
                    text = self.metrics()
                    status = b"200 OK" if text else b"404 Not Found"
                    writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(text)))
                    writer.write(text)
                    continue
                if head.startswith(b"POST /reset_prefix_cache "):
                    status = b"200 OK" if self.forgets else b"404 Not Found"
                    self.resets += self.forgets
                    writer.write(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % status)
                    continue
                if b"_profile " in head.split(b"\r\n")[0]:
                    self.profiles.append(head.split()[1].decode())
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    continue
                if head.startswith(b"GET /v1/models "):
                    listed = json.dumps({"data": [{"id": name} for name in self.models]}).encode()
                    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(listed)
                    writer.write(head + listed)
                    continue
                await self.stream(json.loads(body), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def stream(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.bodies.append(body)
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for data in self.answer(body):
            event = f"data: {data}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(0.002)
        self.active -= 1
        writer.write(b"0\r\n\r\n")


@contextmanager
def serving(answer: Answer = completion, models: tuple[str, ...] = ("tiny",)) -> Iterator[Any]:
    server = OpenAIServer(answer, list(models))
    started = threading.Event()
    stops: list[Callable[[], object]] = []

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        stops.append(lambda: loop.call_soon_threadsafe(stop.set))
        listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        started.set()
        async with listener:
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert started.wait(60)
    try:
        yield server
    finally:
        stops[0]()
        thread.join(60)
