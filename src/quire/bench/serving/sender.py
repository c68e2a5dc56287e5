"""Send a load from many clients, and record each request's outcome."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import field
from typing import Any

from quire.bench.progress import progress
from quire.bench.serving.http_client import ConnectionLostError, HTTPClient, Pieces, events
from quire.bench.serving.load import Load, Request, next_body
from quire.core.errors import QuireError
from quire.system.records import dataclass


@dataclass(slots=True)
class Outcome:
    """One request. Times are seconds of the monotonic clock; chunks are those with text.

    Attributes:
        start: when it was due; in a closed loop, when it was sent.
        sent: when it was sent.
        repeats: its prompt shares a prefix with an earlier one.
        pieces: the raw response, until `read` has parsed it.
    """

    start: float
    chunk_times: list[float] = field(default_factory=list)
    end: float = 0.0
    output_tokens: int = 0
    error: str | None = None
    sent: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    repeats: bool = False
    text: str = field(default="", repr=False)
    pieces: Pieces | None = field(default=None, repr=False)

    @property
    def ttft(self) -> float | None:
        """Return the seconds to the first chunk; None without chunks."""
        return self.chunk_times[0] - self.start if self.chunk_times else None

    @property
    def tpot(self) -> float | None:
        """Return the mean seconds per token after the first; None for a single token."""
        if self.output_tokens < 2 or not self.chunk_times:
            return None
        return (self.chunk_times[-1] - self.chunk_times[0]) / (self.output_tokens - 1)

    @property
    def e2e(self) -> float:
        return self.end - self.start

    def read(self) -> None:
        """Parse the response into the fields; `error` gets any fault in it."""
        pieces, self.pieces = self.pieces, None
        if self.error is None and pieces is not None:
            try:
                self._read(pieces)
            except (ValueError, KeyError, QuireError) as error:
                self.error = f"{type(error).__name__}: {error}"

    def _read(self, pieces: Pieces) -> None:
        usage: dict[str, Any] | None = None
        finished = False
        texts: list[str] = []
        for moment, data in events(pieces):
            if data == "[DONE]":
                finished = True
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                raise QuireError(f"The server sent an error: {chunk['error']}")
            if text := "".join(_text(choice) for choice in chunk.get("choices", [])):
                self.chunk_times.append(moment)
                texts.append(text)
            usage = chunk.get("usage") or usage
        if not finished:
            raise ConnectionLostError("The stream ended without [DONE].")
        if usage is None:
            raise QuireError("The server sent no usage, so its tokens cannot be counted.")
        self.text = "".join(texts)
        self.output_tokens = int(usage["completion_tokens"])
        self.prompt_tokens = int(usage.get("prompt_tokens") or 0)
        details = usage.get("prompt_tokens_details") or {}
        self.cached_tokens = int(details.get("cached_tokens") or 0)


async def send(load: Load, client: Callable[[], HTTPClient]) -> tuple[list[Outcome], float]:
    """Send the load over `num_clients` connections; return the outcomes and the elapsed seconds.

    A request's clock starts at its arrival time even if every client is busy. Otherwise a slow
    server could hide its queue (coordinated omission). With an infinite rate, and in later turns of
    a conversation, it starts when the request is sent.
    """
    outcomes: list[Outcome] = []
    pending = iter(load.requests)
    begin = time.monotonic()
    with progress(total=len(load), unit="request", silent=load.silent) as bar:

        async def work() -> None:
            connection = client()
            for request in pending:
                due = begin + request.arrival
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                start = time.monotonic() if load.closed_loop else due
                outcome = Outcome(start, repeats=request.repeats)
                outcomes.append(outcome)
                await stream_one(connection, load.path, request.body, outcome)
                bar.update()
                await _follow_up(connection, load.path, request, outcome, outcomes, bar.update)
            await connection.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(load.num_clients):
                group.create_task(work())
    elapsed = time.monotonic() - begin
    for outcome in outcomes:
        outcome.read()
    return outcomes, elapsed


async def _follow_up(
    connection: HTTPClient,
    path: str,
    request: Request,
    outcome: Outcome,
    outcomes: list[Outcome],
    done: Callable[[], Any],
) -> None:
    """Send the later turns of a conversation, each with the earlier answers, until an error."""
    body = request.body
    for follow_up in request.follow_ups:
        outcome.read()
        if outcome.error is not None:
            return
        body = next_body(body, outcome.text, follow_up)
        outcome = Outcome(time.monotonic(), repeats=True)
        outcomes.append(outcome)
        await stream_one(connection, path, body, outcome)
        done()


async def stream_one(
    connection: HTTPClient, path: str, body: dict[str, Any], outcome: Outcome
) -> None:
    """Send one streamed request; a fault is stored in `outcome.error`, not raised."""
    outcome.sent = time.monotonic()
    try:
        outcome.pieces = await connection.exchange("POST", path, body)
    except (OSError, QuireError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.end = time.monotonic()


def _text(choice: dict[str, Any]) -> str:
    """Return the text of a completion chunk, or of a chat chunk's delta."""
    return str(choice.get("text") or choice.get("delta", {}).get("content") or "")
