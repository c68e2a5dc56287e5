"""Requests to replicas that are lost, without Ray."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from quire.ray import entry
from quire.ray.entry import ATTEMPTS, Entry, Head

JSON = [("Content-Type", "application/json")]
EVENTS = [("content-type", "text/event-stream; charset=utf-8")]


class LostError(Exception):
    """Stands for Ray's errors."""


class Parts:
    """What one replica answers; an exception is raised."""

    def __init__(self, given: list[Any]) -> None:
        self._given = iter(given)
        self.cancelled = False

    def __aiter__(self) -> Parts:
        return self

    async def __anext__(self) -> Any:
        for part in self._given:
            if isinstance(part, BaseException):
                raise part
            return part
        raise StopAsyncIteration

    def cancel(self) -> None:
        self.cancelled = True


class Replicas:
    """Answers one request after the other; `asked` are their arguments."""

    def __init__(self, *answers: list[Any]) -> None:
        self.answers = [Parts(given) for given in answers]
        self.asked: list[Any] = []

    def options(self, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(remote=self._remote)

    def _remote(self, *asked: Any) -> Parts:
        self.asked.append(asked)
        return self.answers[len(self.asked) - 1]


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ray", "ray.exceptions", "ray.serve", "ray.serve.exceptions"):
        module = ModuleType(name)
        vars(module).update(RayError=LostError, RayServeException=LostError)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(entry, "PAUSE_SECONDS", 0.0)


def ask(replicas: Replicas) -> tuple[int, bytes]:
    """The status and the body of what the client gets."""
    scope = {
        "type": "http", "method": "POST", "path": "/app/v1/completions", "root_path": "/app",
        "query_string": b"a=1", "headers": [(b"x-a", b"b")], "server": ("h", 80), "scheme": "http",
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"body", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        response = await Entry(replicas)(Request(scope, receive))
        body: AsyncIterator[bytes] | None = getattr(response, "body_iterator", None)
        if body is None:
            sent.append({"body": response.body})
        else:
            sent.extend([{"body": part} async for part in body])
        sent.insert(0, response.status_code)

    asyncio.run(run())
    return sent[0], b"".join(each["body"] for each in sent[1:])


def test_an_answer_is_passed_on() -> None:
    replicas = Replicas([Head(404, JSON), b"a", b"b"])
    assert ask(replicas) == (404, b"ab")
    assert replicas.asked == [("POST", "/v1/completions?a=1", [("x-a", "b")], b"body")]
    assert ask(Replicas([Head(204, [])])) == (204, b"")


@pytest.mark.parametrize(
    "lost",
    [
        [LostError()],
        [Head(200, EVENTS), LostError()],
        [Head(503, JSON), b"restarting"],
        [Head(200, JSON), b"{", LostError()],
    ],
)
def test_a_request_without_output_goes_to_another_replica(lost: list[Any]) -> None:
    """A whole answer is passed on only once all of it has come."""
    assert ask(Replicas(lost, [Head(200, JSON), b"a"])) == (200, b"a")


def test_the_last_attempt_is_the_answer() -> None:
    assert ask(Replicas([Head(429, JSON), b"full"])) == (429, b"full")
    stops = Replicas(*[[Head(503, JSON), b"stops"] for _ in range(ATTEMPTS)])
    assert ask(stops) == (503, b"stops")
    status, body = ask(Replicas(*[[LostError("gone")] for _ in range(ATTEMPTS)]))
    assert status == 503
    assert "gone" in json.loads(body)["error"]["message"]


def test_a_stream_that_breaks_off_ends_with_an_error_event() -> None:
    replicas = Replicas([Head(200, EVENTS), b"data: 1\n\n", LostError("gone")])
    _, body = ask(replicas)
    first, last = body.removesuffix(b"\n\n").split(b"\n\n")
    assert first == b"data: 1"
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "engine_restarting"
    assert replicas.answers[0].cancelled
