"""`quire bench serve`: many clients stream from an OpenAI-compatible server; who waits how long?"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from quire.bench.http_client import (
    ConnectionLostError,
    HTTPClient,
    HTTPStatusError,
    Pieces,
    events,
)
from quire.bench.machine import portable_name
from quire.bench.progress import progress
from quire.bench.report import Row, percentile, summarise
from quire.bench.split import Reading, between, lag_ms, read_metrics
from quire.bench.workload import arrival_times, text_prompts, token_prompts
from quire.core import env
from quire.core.config import EngineArgs
from quire.core.errors import ConfigError, QuireError
from quire.core.flags import engine_args_from, engine_flags_from

KEYS = (
    "num_clients",
    "request_rate",
    "ttft_ms",
    "itl_ms",
    "e2e_ms",
    "output_tok_s",
    "errors",
    "split",
    "event_loop_lag_ms",
)
CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Load:
    """One repetition's requests and how they are sent."""

    path: str
    bodies: list[dict[str, Any]]
    arrivals: list[float]
    num_clients: int
    closed_loop: bool
    """Requests have no arrival time of their own: each is sent when a client is free."""


@dataclass(slots=True)
class Outcome:
    """One request. Times in seconds; TTFT and ITL count chunks that carry text."""

    start: float
    chunk_times: list[float] = field(default_factory=list)
    end: float = 0.0
    output_tokens: int = 0
    error: str | None = None
    pieces: Pieces = field(default_factory=list, repr=False)
    """The response as it came, until `read` has told what is in it."""

    def read(self) -> None:
        """Fill in what the response says; whatever is wrong with it goes to `error`."""
        if self.error is None:
            try:
                self._read()
            except (ValueError, KeyError, QuireError) as error:
                self.error = f"{type(error).__name__}: {error}"
        self.pieces = []

    def _read(self) -> None:
        usage: dict[str, Any] | None = None
        finished = False
        for moment, data in events(self.pieces):
            if data == "[DONE]":
                finished = True
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                raise QuireError(f"The server sent an error: {chunk['error']}")
            if any(_text(choice) for choice in chunk.get("choices", [])):
                self.chunk_times.append(moment)
            usage = chunk.get("usage") or usage
        if not finished:
            raise ConnectionLostError("The stream ended without [DONE].")
        if usage is None:
            raise QuireError("The server sent no usage, so that its tokens cannot be counted.")
        self.output_tokens = int(usage["completion_tokens"])


def run(args: argparse.Namespace) -> Row:
    """Measure the server at `--base-url`, or one started here and stopped at the end."""
    if args.base_url:
        _check_flags(args)
        return measure(args, args.base_url)
    from quire.bench.server_process import running_server

    with running_server(args) as base_url:
        return measure(args, base_url)


def measure(args: argparse.Namespace, base_url: str) -> Row:
    """Warm the server up with one request, then send every repetition's load."""
    base_url = base_url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {key}"} if (key := env.api_key()) else {}

    def client() -> HTTPClient:
        return HTTPClient(base_url, headers)

    model = asyncio.run(_served_model(client(), args))
    asyncio.run(_warm_up(client(), make_load(args, model, repetition=-1)))
    samples = []
    for repetition in range(args.repetitions):
        load = make_load(args, model, repetition)
        before = asyncio.run(_reading(client()))
        outcomes, elapsed = asyncio.run(send(load, client))
        after = asyncio.run(_reading(client()))
        split: Row = {}
        lag: Row = {}
        if before is not None and after is not None:
            split, lag = between(before, after).shares, lag_ms(before, after)
        samples.append({**sample(outcomes, elapsed), "split": split, "event_loop_lag_ms": lag})
    rate = "inf" if math.isinf(args.request_rate) else args.request_rate
    settings = {"num_clients": args.num_clients, "request_rate": rate}
    row = summarise(KEYS, settings, samples)
    sizes = ("num_prompts", "input_len", "output_len", "burstiness", "endpoint")
    return row | {"model": portable_name(model)} | {name: getattr(args, name) for name in sizes}


def make_load(args: argparse.Namespace, model: str, repetition: int) -> Load:
    """The requests of one repetition (−1 is the warm-up); the same for the same `--seed`."""
    seed = [args.seed, repetition + 1]
    options: dict[str, Any] = {
        "model": model,
        "max_tokens": args.output_len,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if args.ignore_eos:
        options["ignore_eos"] = True
    chat = args.endpoint == "chat"
    if chat or args.prompts == "text":
        texts = text_prompts(args.num_prompts, args.input_len, seed)
        prompts: list[Any] = [[{"role": "user", "content": t}] for t in texts] if chat else [*texts]
    else:
        prompts = [*token_prompts(args.num_prompts, args.input_len, args.vocab_size, seed)]
    return Load(
        path=CHAT_PATH if chat else COMPLETIONS_PATH,
        bodies=[{**options, "messages" if chat else "prompt": prompt} for prompt in prompts],
        arrivals=arrival_times(args.num_prompts, args.request_rate, args.burstiness, seed),
        num_clients=args.num_clients,
        closed_loop=math.isinf(args.request_rate),
    )


async def send(load: Load, client: Callable[[], HTTPClient]) -> tuple[list[Outcome], float]:
    """Send the load from `num_clients` connections; outcomes in order, and the seconds it took.

    A request's clock starts at its arrival time even while every client is busy, so that
    a slow server cannot hide its queue (coordinated omission); with an infinite rate, when it
    is sent.
    """
    outcomes: list[Outcome] = []
    pending = iter(zip(load.bodies, load.arrivals, strict=True))
    begin = time.monotonic()
    with progress(total=len(load.bodies), unit="request") as bar:

        async def work() -> None:
            connection = client()
            for body, arrival in pending:
                await asyncio.sleep(max(0.0, begin + arrival - time.monotonic()))
                start = time.monotonic() if load.closed_loop else begin + arrival
                outcome = Outcome(start)
                outcomes.append(outcome)
                await stream_one(connection, load.path, body, outcome)
                bar.update()
            await connection.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(load.num_clients):
                group.create_task(work())
    elapsed = time.monotonic() - begin
    for outcome in outcomes:
        outcome.read()
    return outcomes, elapsed


async def stream_one(
    connection: HTTPClient, path: str, body: dict[str, Any], outcome: Outcome
) -> None:
    """One streamed request; whatever goes wrong is kept in `outcome.error`, not raised."""
    try:
        outcome.pieces = await connection.exchange("POST", path, body)
    except (OSError, QuireError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.end = time.monotonic()


def sample(outcomes: list[Outcome], elapsed: float) -> Row:
    """One repetition's numbers, over the requests that succeeded.

    Raises:
        QuireError: where none did, with the first one's reason.
    """
    good = [o for o in outcomes if o.error is None]
    if not good:
        reason = outcomes[0].error if outcomes else "there were none"
        raise QuireError(f"All {len(outcomes)} requests failed: {reason}")
    gaps = [b - a for o in good for a, b in pairwise(o.chunk_times)]
    return {
        "ttft_ms": _spread([o.chunk_times[0] - o.start for o in good if o.chunk_times]),
        "itl_ms": _spread(gaps),
        "e2e_ms": _spread([o.end - o.start for o in good]),
        "output_tok_s": sum(o.output_tokens for o in good) / elapsed,
        "errors": len(outcomes) - len(good),
    }


def _check_flags(args: argparse.Namespace) -> None:
    """Refuse flags that only a server started here could heed."""
    given = replace(engine_args_from(args), model=EngineArgs().model, seed=EngineArgs().seed)
    if flags := engine_flags_from(given):
        raise ConfigError(
            f"{', '.join(flags)} cannot change the server at {args.base_url}.",
            fix="Give it to that server, or leave out --base-url to start one here.",
            param=flags[0].partition("=")[0],
        )


async def _served_model(connection: HTTPClient, args: argparse.Namespace) -> str:
    """The model's name at the server; where `--model` is left alone, the only one served."""
    listed = await connection.json("GET", "/v1/models")
    await connection.close()
    names = [str(entry["id"]) for entry in listed["data"]]
    if args.model in names:
        return str(args.model)
    asked = args.base_url and args.model != EngineArgs().model
    if len(names) == 1 and not asked:
        return names[0]
    raise ConfigError(
        f"The server does not serve {args.model!r}; it serves {', '.join(names) or 'nothing'}.",
        fix="Name one of them with --model.",
        param="--model",
    )


async def _reading(connection: HTTPClient) -> Reading | None:
    """The server's counters, where it is Quire's."""
    try:
        return read_metrics(await connection.text("GET", "/metrics"))
    except (HTTPStatusError, ValueError):
        return None
    finally:
        await connection.close()


async def _warm_up(connection: HTTPClient, load: Load) -> None:
    """One request outside the measurement; its failure ends the benchmark with its reason."""
    outcome = Outcome(time.monotonic())
    await stream_one(connection, load.path, load.bodies[0], outcome)
    await connection.close()
    outcome.read()
    if outcome.error is not None:
        raise QuireError(f"The first request failed: {outcome.error}")


def _text(choice: dict[str, Any]) -> str:
    """The text of a completion chunk, or of a chat chunk's delta."""
    return str(choice.get("text") or choice.get("delta", {}).get("content") or "")


def _spread(seconds: list[float]) -> dict[str, float]:
    """p50 and p99, in milliseconds."""
    return {name: percentile(seconds, p) * 1e3 for name, p in (("p50", 0.5), ("p99", 0.99))}
