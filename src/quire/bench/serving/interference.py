"""`quire bench interference`: how much arriving long prompts slow decoding streams.

The token budget of a step sets the trade-off. Compare the engine's choice with fixed budgets.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

from quire.bench.engine import TYPES
from quire.bench.machine import portable_name
from quire.bench.progress import progress
from quire.bench.results.report import Row, percentile, summarise
from quire.bench.serving.workload import token_prompts
from quire.core.errors import QuireError
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.frontend.async_llm import AsyncLLM
from quire.resolve.arguments import EngineArgs

AUTO = "auto"
POLL_SECONDS = 0.005


def run(args: argparse.Namespace) -> list[Row]:
    """Return one row per `--budgets` value, each from a new engine."""
    given = EngineArgs.from_cli_args(args)
    rows = []
    for budget in args.budgets or [given.max_num_batched_tokens or AUTO]:
        fixed = None if budget == AUTO else int(budget)
        rows.append(asyncio.run(_row(args, replace(given, max_num_batched_tokens=fixed))))
    return rows


async def _row(args: argparse.Namespace, engine_args: EngineArgs) -> Row:
    """Return the row of one engine: a warm-up, then `--repetitions` rounds."""
    engine = await AsyncLLM.start(engine_args)
    try:
        await one_round(engine, args, repetition=-1)
        samples = []
        with progress(total=args.repetitions, unit="round") as bar:
            for repetition in range(args.repetitions):
                samples.append(await one_round(engine, args, repetition))
                bar.update()
    finally:
        engine.shutdown()
    settings: Row = {"max_num_batched_tokens": str(engine_args.max_num_batched_tokens or AUTO)}
    row = summarise(settings, samples)
    sizes = ("num_streams", "input_len", "num_arrivals", "arrival_len")
    facts = {name: engine.facts[name] for name in TYPES}
    return {
        "model": portable_name(engine_args.model),
        **facts,
        **{name: getattr(args, name) for name in sizes},
        **row,
    }


async def one_round(engine: AsyncLLM, args: argparse.Namespace, repetition: int) -> Row:
    """Let the streams decode alone, send one long prompt after another, and let them decode alone
    again. The second part is needed because growing contexts also make steps longer.

    Returns:
        gaps between tokens, idle (before and after) and while prompts were computed; the median
        time to an arrival's first token; prompt tokens per second until then.
    """
    vocab, seed = engine.model_config.vocab_size, [args.seed, repetition + 1]
    prompts = token_prompts(args.num_streams, args.input_len, vocab, [*seed, 0])
    arrivals = token_prompts(args.num_arrivals, args.arrival_len, vocab, [*seed, 1])
    streams = Streams(engine, prompts)
    try:
        await streams.reach(2)
        idle = time.monotonic()
        await streams.advance(args.idle_tokens)
        loaded = time.monotonic()
        waits = [await first_token_seconds(engine, prompt) for prompt in arrivals]
        end = time.monotonic()
        await streams.advance(args.idle_tokens)
        idle_again = time.monotonic()
    finally:
        await streams.stop()
    alone = streams.gaps(idle, loaded) + streams.gaps(end, idle_again)
    slowed = streams.gaps(loaded, end, overlapping=True)
    cells = {
        f"{name}_p{p}_ms": percentile(gaps, p / 100) * 1e3
        for name, gaps in (("idle", alone), ("itl", slowed))
        for p in (50, 99)
    }
    return {
        **cells,
        "p50_ratio": cells["itl_p50_ms"] / cells["idle_p50_ms"],
        "p99_ratio": cells["itl_p99_ms"] / cells["idle_p99_ms"],
        "ttft_s": percentile(waits, 0.5),
        "arrival_tok_s": args.num_arrivals * args.arrival_len / (end - loaded),
    }


class Streams:
    """Requests that run until they are stopped, and the times of their outputs."""

    def __init__(self, engine: AsyncLLM, prompts: list[list[int]]) -> None:
        self._engine = engine
        self._times: list[list[float]] = [[] for _ in prompts]
        self._tasks = [
            asyncio.create_task(self._read(prompt, times))
            for prompt, times in zip(prompts, self._times, strict=True)
        ]

    async def reach(self, count: int) -> None:
        """Wait until every stream has this many outputs."""
        await self._wait([count] * len(self._times))

    async def advance(self, count: int) -> None:
        """Wait until every stream has this many more outputs."""
        await self._wait([len(times) + count for times in self._times])

    async def _wait(self, counts: list[int]) -> None:
        while any(len(times) < n for times, n in zip(self._times, counts, strict=True)):
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(POLL_SECONDS)

    def gaps(self, begin: float, end: float, *, overlapping: bool = False) -> list[float]:
        """Return the seconds between consecutive outputs of a stream within the interval.

        Args:
            overlapping: include gaps that are only partly inside.

        Raises:
            QuireError: there are none.
        """
        pairs = [pair for times in self._times for pair in pairwise(times)]
        if overlapping:
            gaps = [after - before for before, after in pairs if before < end and after > begin]
        else:
            gaps = [after - before for before, after in pairs if begin <= before and after <= end]
        if not gaps:
            raise QuireError(
                "No stream got two tokens within a measured interval.", fix="Raise --idle-tokens."
            )
        return gaps

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self, prompt: list[int], times: list[float]) -> None:
        room = self._engine.max_model_len - len(prompt)
        async with aclosing(_generate(self._engine, prompt, room)) as outputs:
            # Each output has one token, or several if this process is late.
            async for _ in outputs:
                times.append(time.monotonic())  # noqa: PERF401 - read concurrently
        raise QuireError(
            "A stream ended before the benchmark did.",
            fix="Raise --max-model-len, or lower --idle-tokens or --num-arrivals.",
        )


async def first_token_seconds(engine: AsyncLLM, prompt: list[int]) -> float:
    """Return the time from sending a request for one token to its arrival."""
    begin = time.monotonic()
    async for _ in _generate(engine, prompt, 1):
        pass
    return time.monotonic() - begin


def _generate(engine: AsyncLLM, prompt: list[int], max_tokens: int) -> Any:
    params = SamplingParams(
        temperature=0.0, max_tokens=max_tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    return engine.generate({"prompt_token_ids": prompt}, params)
