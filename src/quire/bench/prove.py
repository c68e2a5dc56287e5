"""`quire explain --prove`: the present and the changed engine in turns on the same load."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import Any

from quire.bench.engine import open_engine
from quire.bench.explained import Demand
from quire.bench.progress import progress
from quire.explain.report import ITL, THROUGHPUT, Change, Proof
from quire.resolve.arguments import EngineArgs
from quire.system import env

START_TIMEOUT = 600.0

Round = Callable[[int], dict[str, float]]
"""Runs one repetition of the load (−1 is the warm-up); returns speeds by `Change.metric`. The speed
of a latency is one over it."""


def prove(
    args: EngineArgs, changes: Sequence[Change], demand: Demand, *, repetitions: int, served: bool
) -> list[Proof]:
    """Measure the gain of each change alone.

    Skipped are changes without an engine flag or of the start, and offline those of the time
    between tokens.

    Both engines of a pair stay in memory, so that other load affects both alike.

    Args:
        args: the present engine.
        served: measure over HTTP, with one server per engine; else offline.
    """
    side = served_side if served else offline_side
    metrics = (THROUGHPUT, ITL) if served else (THROUGHPUT,)
    wanted = [c for c in changes if c.fields and c.metric in metrics]
    proofs = []
    with ExitStack() as stack, progress(total=len(wanted) * repetitions, unit="round") as bar:
        before = stack.enter_context(side(args, demand))
        before(-1)
        for change in wanted:
            changed = replace(args, **change.fields)  # type: ignore[arg-type]
            with side(changed, demand) as after:
                after(-1)
                pairs = []
                for repetition in range(repetitions):
                    turns = (after, before) if repetition % 2 else (before, after)
                    found = {turn: turn(repetition)[change.metric] for turn in turns}
                    pairs.append((found[before], found[after]))
                    bar.update()
            proofs.append(proof_of(change, pairs))
    return proofs


def proof_of(change: Change, pairs: list[tuple[float, float]]) -> Proof:
    """Return the medians of before, after and gain."""
    gains = [b / a - 1.0 if a > 0.0 else 0.0 for a, b in pairs]
    return Proof(
        flag=change.flag,
        metric=change.metric,
        before=statistics.median(a for a, _ in pairs),
        after=statistics.median(b for _, b in pairs),
        spread=(max(gains) - min(gains)) / 2,
        estimated_gain=change.estimated_gain,
        proven_gain=statistics.median(gains),
        repetitions=len(pairs),
        at_least=change.at_least,
    )


@contextmanager
def offline_side(args: EngineArgs, demand: Demand) -> Iterator[Round]:
    """Yield rounds of an `LLM` that gets all prompts at once."""
    with open_engine(argparse.Namespace(**asdict(args))) as engine:

        def one_round(repetition: int) -> dict[str, float]:
            prompts = demand.prompts(engine.vocab_size, [args.seed, repetition + 1])
            start = time.perf_counter()
            engine.generate(prompts, demand.output_len)
            tokens = demand.num_prompts * demand.output_len
            return {THROUGHPUT: tokens / (time.perf_counter() - start)}

        yield one_round


@contextmanager
def served_side(args: EngineArgs, demand: Demand) -> Iterator[Round]:
    """Yield rounds of a server with closed-loop clients."""
    from quire.bench.serving.http_client import HTTPClient
    from quire.bench.serving.load import COMPLETIONS_PATH, Load, Request
    from quire.bench.serving.sender import send
    from quire.bench.serving.server_process import running_server
    from quire.bench.serving.waits import sample

    with running_server(argparse.Namespace(**asdict(args), start_timeout=START_TIMEOUT)) as url:

        def one_round(repetition: int) -> dict[str, float]:
            load = Load(
                path=COMPLETIONS_PATH,
                requests=[
                    Request(body)
                    for body in request_bodies(args, demand, [args.seed, repetition + 1])
                ],
                num_clients=demand.concurrency,
                closed_loop=True,
            )
            outcomes, elapsed = asyncio.run(send(load, lambda: HTTPClient(url, env.key_header())))
            row = sample(outcomes, elapsed)
            return {THROUGHPUT: row["output_tok_s"], ITL: 1e3 / max(1e-3, row["itl_ms"]["p99"])}

        yield one_round


def request_bodies(args: EngineArgs, demand: Demand, seed: list[int]) -> list[dict[str, Any]]:
    """Return the bodies of one repetition for `POST /v1/completions`."""
    prompts = demand.texts(seed) if demand.text else demand.prompts(_SAFE_VOCABULARY, seed)
    common = {
        "model": args.model,
        "max_tokens": demand.output_len,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return [common | {"prompt": prompt} for prompt in prompts]


_SAFE_VOCABULARY = 256
"""Every vocabulary has at least this many tokens."""
