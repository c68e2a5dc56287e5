"""`quire bench overhead`: the time outside the model, over HTTP and offline, and that of a hop
between the pipeline stages of two machines.

Both engines are in memory and take turns, so that other load affects both alike. The measured time
is steady decoding: from when every stream has begun until the first is about to end.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from quire.bench.engine import BenchEngine, open_engine
from quire.bench.hop import hop_ms
from quire.bench.machine import portable_name
from quire.bench.progress import progress
from quire.bench.results.report import Row, fold, print_grid
from quire.bench.serving.http_client import HTTPClient
from quire.bench.serving.load import COMPLETIONS_PATH
from quire.bench.serving.sender import Outcome, stream_one
from quire.bench.serving.server_process import running_server
from quire.bench.serving.workload import token_prompts
from quire.bench.split import Reading, between, read_metrics, read_stats
from quire.core.errors import ConfigError, QuireError
from quire.resolve.arguments import EngineArgs

POLL_SECONDS = 0.01
FIRST_TOKENS = 2
"""The measurement begins when every stream has this many tokens."""
LAST_SHARE = 0.9
"""It ends when the first stream has this share of its tokens."""


def run(args: argparse.Namespace) -> Row:
    """Measure each number of streams `--repetitions` times, offline and over HTTP in turns."""
    args = _sized(args)
    counts: list[int] = args.streams
    samples: dict[int, list[Row]] = {count: [] for count in counts}
    with open_engine(args) as engine, running_server(args) as base_url:
        with progress(total=len(counts) * args.repetitions, unit="round") as bar:
            for count in counts:
                for repetition in range(args.repetitions):
                    seed = [args.seed, count, repetition]
                    offline = _offline(engine, args, count, seed)
                    http = asyncio.run(_over_http(base_url, engine.vocab_size, args, count, seed))
                    ratio = http["output_tok_s"] / offline["output_tok_s"]
                    samples[count].append(
                        {"http": http, "offline": offline, "http_over_offline": ratio}
                    )
                    bar.update()
        types, width = engine.types, engine.config.model.hidden_size
    sizes = {name: getattr(args, name) for name in ("input_len", "output_len", "repetitions")}
    medians = {f"streams_{count}": fold(rows, statistics.median) for count, rows in samples.items()}
    for count in counts:
        medians[f"streams_{count}"]["hop_ms"] = hop_ms(count, width, types["dtype"])
    return {"model": portable_name(args.model), **types, **sizes, **medians}


def _offline(engine: BenchEngine, args: argparse.Namespace, count: int, seed: list[int]) -> Row:
    """Return the split while `count` prompts decode together in this process."""
    prompts = token_prompts(count, args.input_len, engine.vocab_size, [*seed, 0])
    stats = engine.llm.stats
    readings: list[Reading] = []
    start = stats.generation_tokens

    def observe() -> None:
        each = (stats.generation_tokens - start) / count
        if FIRST_TOKENS <= each <= LAST_SHARE * args.output_len:
            readings.append(read_stats(stats))

    stats.observer = observe
    try:
        engine.generate(prompts, args.output_len)
    finally:
        stats.observer = None
    if len(readings) < 2:
        raise _too_short(args)
    return between(readings[0], readings[-1]).row()


async def _over_http(
    base_url: str, vocab_size: int, args: argparse.Namespace, count: int, seed: list[int]
) -> Row:
    """Return the split while `count` clients stream from the server."""
    prompts = token_prompts(count, args.input_len, vocab_size, [*seed, 1])
    body = {"max_tokens": args.output_len, "temperature": 0.0}
    body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    clients = [HTTPClient(base_url) for _ in prompts]
    outcomes = [Outcome(time.monotonic()) for _ in prompts]
    control = HTTPClient(base_url)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(stream_one(client, COMPLETIONS_PATH, {**body, "prompt": p}, outcome))
            for client, p, outcome in zip(clients, prompts, outcomes, strict=True)
        ]
        # A stream's first piece is its head.
        await _until(lambda: min(len(c.pieces) for c in clients) > FIRST_TOKENS, tasks)
        first = await _read(control)
        last_piece = LAST_SHARE * args.output_len
        await _until(lambda: max(len(c.pieces) for c in clients) >= last_piece, tasks)
        last = await _read(control)
    for connection in (*clients, control):
        await connection.close()
    for outcome in outcomes:
        outcome.read()
        if outcome.error is not None or outcome.output_tokens != args.output_len:
            raise QuireError(f"A stream did not end normally: {outcome.error or outcome}")
    return between(first, last).row()


async def _until(reached: Callable[[], bool], streams: Sequence[asyncio.Task[None]]) -> None:
    """Wait until `reached` is true or a stream ends."""
    while not reached() and not any(stream.done() for stream in streams):  # noqa: ASYNC110
        await asyncio.sleep(POLL_SECONDS)


async def _read(control: HTTPClient) -> Reading:
    reading = read_metrics(await control.text("GET", "/metrics"))
    assert reading is not None
    return reading


def _sized(args: argparse.Namespace) -> argparse.Namespace:
    """Return `args` for engines that hold all streams at once in as little memory as possible."""
    most = max(args.streams)
    if args.output_len < 2 * FIRST_TOKENS / (1 - LAST_SHARE):
        raise _too_short(args)
    engine = EngineArgs.from_cli_args(args)
    blocks = most * (-(-(args.input_len + args.output_len) // engine.block_size) + 1)
    sized = {
        "max_num_seqs": max(most, engine.max_num_seqs),
        "num_gpu_blocks_override": engine.num_gpu_blocks_override or blocks,
    }
    return argparse.Namespace(**{**vars(args), **sized})


def _too_short(args: argparse.Namespace) -> ConfigError:
    return ConfigError(
        f"--output-len is {args.output_len}, too short for all streams to decode together.",
        fix="Set it to 64 or more.",
        param="--output-len",
    )


def grid(row: Row) -> list[Row]:
    """Return one row per number of streams, over HTTP and offline."""
    lines: list[Row] = []
    for name, found in row.items():
        if name.startswith("streams_"):
            for way in ("http", "offline"):
                one = found[way]
                numbers = {k: one[k] for k in ("non_model_share", "output_tok_s")}
                ratio = found["http_over_offline"] if way == "http" else None
                streams = int(name.removeprefix("streams_"))
                line = {"streams": streams, "over": way, **numbers, "http_over_offline": ratio}
                line["hop_ms"] = found.get("hop_ms") if way == "http" else None
                lines.append({**line, **one["split"]})
    return lines


def print_result(row: Row, out: TextIO) -> None:
    print_grid("bench overhead", grid(row), out)
