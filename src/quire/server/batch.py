"""`quire run-batch`: send the requests of a file through the server's own application.

Each line is one OpenAI batch request. Its answer is the endpoint's answer over HTTP, with the same
checks and errors. Each answer is written as soon as it is complete, in any order. So an interrupted
run loses only the requests in progress.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import field
from http import HTTPStatus
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import msgspec
from starlette.types import ASGIApp, Message

from quire.core.errors import ConfigError, QuireError
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire.frontend.async_llm import AsyncLLM

URLS = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/score",
    "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank",
)  # fmt: skip
LINES_A_SEAT = 2
"""Requests in progress per sequence of a step; the next ones are being tokenized."""
LATER = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class BatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """One line of the input."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: Literal["POST"] = "POST"


class BatchAnswer(msgspec.Struct):
    """The result of a request; `body` is the endpoint's, also for errors."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchError(msgspec.Struct):
    """Why a line is not a request."""

    code: str
    message: str


class BatchResult(msgspec.Struct, kw_only=True):
    """One line of the output: an answer or an error."""

    id: str
    custom_id: str | None
    response: BatchAnswer | None = None
    error: BatchError | None = None

    @property
    def succeeded(self) -> bool:
        return self.response is not None and self.response.status_code == HTTPStatus.OK


class _BadLineError(Exception):
    def __init__(self, custom_id: str | None, message: str) -> None:
        super().__init__(message)
        self.custom_id = custom_id


@dataclass(slots=True)
class Batch:
    """One run over a file.

    Attributes:
        on_result: called for each finished line.
        num_succeeded, num_failed: lines so far.
    """

    app: ASGIApp
    engine: AsyncLLM
    out: IO[bytes]
    on_result: Callable[[], object] = lambda: None
    num_succeeded: int = 0
    num_failed: int = 0
    _seen: dict[str, int] = field(default_factory=dict)

    async def run(self, lines: Iterator[tuple[int, bytes]], done: set[str]) -> None:
        """Answer every line, several at a time.

        Args:
            done: ids of requests to leave out.

        Raises:
            QuireError: the engine is dead.
        """
        seats = asyncio.Semaphore(LINES_A_SEAT * self.engine.max_num_seqs)

        async def answer(number: int, line: bytes) -> None:
            try:
                await self._line(number, line, done)
            finally:
                seats.release()

        try:
            async with asyncio.TaskGroup() as group:
                for number, line in lines:
                    await seats.acquire()
                    group.create_task(answer(number, line))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _line(self, number: int, line: bytes, done: set[str]) -> None:
        name = f"batch_req_{secrets.token_hex(12)}"
        try:
            request = _read(line)
            if request.custom_id in done:
                return
            first = self._seen.setdefault(request.custom_id, number)
            if first != number:
                raise _BadLineError(request.custom_id, f"line {first} has the same custom_id.")
        except _BadLineError as error:
            why = BatchError("invalid_request", f"Line {number}: {error}")
            self._write(BatchResult(id=name, custom_id=error.custom_id, error=why))
            return
        response = await self._ask(request, name)
        self._write(BatchResult(id=name, custom_id=request.custom_id, response=response))

    async def _ask(self, request: BatchRequest, name: str) -> BatchAnswer:
        """Send one request, and retry while the engine cannot accept it."""
        while True:
            status, headers, body = await _post(self.app, request.url, bytes(request.body), name)
            if status not in LATER:
                return BatchAnswer(status, headers.get("x-request-id", name), msgspec.Raw(body))
            await asyncio.sleep(float(headers.get("retry-after", 0)))
            if "retry-after" not in headers:
                raise self.engine.error or QuireError("The engine takes no requests.")

    def _write(self, result: BatchResult) -> None:
        self.out.write(msgspec.json.encode(result) + b"\n")
        self.out.flush()
        self.num_succeeded += result.succeeded
        self.num_failed += not result.succeeded
        self.on_result()


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield non-empty lines with their numbers.

    Raises:
        ConfigError: the file does not exist.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.", param="--input-file") from None


def keep_succeeded(path: Path) -> set[str]:
    """Remove failed requests from an earlier run's output; return the ids of the others."""
    done: set[str] = set()
    if not path.exists():
        return done
    kept = path.with_name(f"{path.name}.part")
    with kept.open("wb") as out:
        for _, line in read_lines(path):
            try:
                result = msgspec.json.decode(line, type=BatchResult)
            except msgspec.MsgspecError:  # an incomplete last line
                continue
            if result.succeeded and result.custom_id is not None:
                done.add(result.custom_id)
                out.write(line)
        out.flush()
        os.fsync(out.fileno())
    kept.replace(path)
    return done


def _read(line: bytes) -> BatchRequest:
    """Return a request; raises `_BadLineError`."""
    custom_id: str | None = None
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        custom_id = msgspec.json.decode(fields.get("custom_id", b"null"), type=str | None)
        request = msgspec.json.decode(line, type=BatchRequest)
        body: Any = msgspec.json.decode(request.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _BadLineError(custom_id, f"{error}.") from None
    if request.url not in URLS:
        raise _BadLineError(custom_id, f"url is {request.url!r}; it may be {', '.join(URLS)}.")
    if isinstance(body, dict) and (body.get("stream") or body.get("background")):
        raise _BadLineError(custom_id, "a batch has no streams, and nothing in the background.")
    return request


async def _post(
    app: ASGIApp, url: str, body: bytes, request_id: str
) -> tuple[int, dict[str, str], bytes]:
    """Send a request to an application in this process; return status, headers and body."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    answers: list[Message] = []

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()  # the client never disconnects
        return messages.pop()

    async def send(message: Message) -> None:
        answers.append(message)

    headers = {"content-type": "application/json", "x-request-id": request_id}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": url,
        "raw_path": url.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    await app(scope, receive, send)
    start, *parts = answers
    found = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return start["status"], found, b"".join(part.get("body", b"") for part in parts)
