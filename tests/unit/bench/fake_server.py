"""A small server that speaks OpenAI's streams, for the load generator to talk to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tests.listening import in_thread, listening

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
    """Serves model "tiny"; keeps every body it was sent."""

    def __init__(self, answer: Answer, models: tuple[str, ...]) -> None:
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response: Response
        match scope["path"]:
            case "/metrics":
                text = self.metrics()
                response = Response(text, 200 if text else 404)
            case "/reset_prefix_cache":
                self.resets += self.forgets
                response = Response(status_code=200 if self.forgets else 404)
            case "/start_profile" | "/stop_profile" as path:
                self.profiles.append(path)
                response = Response()
            case "/v1/models":
                response = JSONResponse({"data": [{"id": name} for name in self.models]})
            case _:
                response = StreamingResponse(self._events(await request.json()))
        await response(scope, receive, send)

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        self.bodies.append(body)
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        for data in self.answer(body):
            yield f"data: {data}\n\n"
            await asyncio.sleep(0.002)
        self.active -= 1


@contextmanager
def serving(answer: Answer = completion, models: tuple[str, ...] = ("tiny",)) -> Iterator[Any]:
    """A server in a thread of its own, until the end of the block."""
    server = OpenAIServer(answer, models)
    with in_thread(listening(server)) as (_, (host, port)):
        server.url = f"http://{host}:{port}"
        yield server
