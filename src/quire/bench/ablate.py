"""`quire bench ablate`: measure the gain of each optimisation, off and on in one run.

Both engines of an optimisation are in memory and take turns, so that other load affects both alike.
All measures are times: less is better.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

from quire.bench.engine import BenchEngine, open_engine
from quire.bench.machine import portable_name
from quire.bench.progress import progress
from quire.bench.results.report import Row, summarise
from quire.bench.serving.workload import token_prompts
from quire.system.records import dataclass

WHOLE_PROMPTS = 2**13
"""A token budget that holds all prompts of the default lengths in one step."""


@dataclass(frozen=True, slots=True)
class Switch:
    """An optimisation: fields of `EngineArgs` without and with it.

    Attributes:
        published: the gain that another engine reports, on another machine and model.
    """

    off: Mapping[str, Any]
    on: Mapping[str, Any]
    measure: str
    published: str = ""


SWITCHES = {
    "async-scheduling": Switch(
        {"async_scheduling": False}, {"async_scheduling": True}, "tpot_ms", "8.7 % (vLLM 0.6, GPU)"
    ),
    "multi-step": Switch(
        {"num_scheduler_steps": 1}, {"num_scheduler_steps": 8}, "tpot_ms", "28 % (vLLM 0.6, GPU)"
    ),
    "plan": Switch({"enforce_eager": True}, {"enforce_eager": False}, "tpot_ms"),
    "int8-kv-cache": Switch({"kv_cache_dtype": "auto"}, {"kv_cache_dtype": "int8"}, "tpot_ms"),
    "speculative-decoding": Switch(
        {"speculative_config": None}, {"speculative_config": '{"method": "suffix"}'}, "tpot_ms"
    ),
    "prefix-caching": Switch(
        {"enable_prefix_caching": False}, {"enable_prefix_caching": True}, "shared_prefix_ttft_ms"
    ),
    "chunked-prefill": Switch(
        {"max_num_batched_tokens": WHOLE_PROMPTS}, {}, "longest_gap_ms", "1.4x ITL (vLLM, GPU)"
    ),
}


def run(args: argparse.Namespace) -> list[Row]:
    """Return one row per `--switch`."""
    with progress(total=len(args.switch) * args.repetitions, unit="round") as bar:
        return [_ablate(args, name, SWITCHES[name], bar.update) for name in args.switch]


def _ablate(args: argparse.Namespace, name: str, switch: Switch, done: Callable[[], Any]) -> Row:
    measure = MEASURES[switch.measure]
    samples: list[Row] = []
    with ExitStack() as stack:
        sides = {
            side: stack.enter_context(open_engine(argparse.Namespace(**(vars(args) | fields))))
            for side, fields in (("off", dict(switch.off)), ("on", dict(switch.on)))
        }
        types = sides["off"].types
        for engine in sides.values():
            measure(engine, args, [args.seed, 0])
        for repetition in range(args.repetitions):
            turns = ("off", "on") if repetition % 2 else ("on", "off")
            seed = [args.seed, repetition + 1]
            row = {side: measure(sides[side], args, seed) for side in turns}
            samples.append(row | {"gain": row["off"] / row["on"] - 1.0})
            done()
    settings = {"optimisation": name, "measure": switch.measure, "published": switch.published}
    return {"model": portable_name(args.model), **types, **summarise(settings, samples)}


def _tpot_ms(engine: BenchEngine, args: argparse.Namespace, seed: list[int]) -> float:
    """Return milliseconds per token of a stream while all streams decode."""
    prompts = token_prompts(args.num_streams, args.input_len, engine.vocab_size, seed)
    metrics = engine.generate(prompts, args.output_len)
    begin = max(m.first_token_time for m in metrics)
    tokens: int = args.output_len - 1
    return (max(m.last_token_time for m in metrics) - begin) / tokens * 1e3


def _shared_prefix_ttft_ms(engine: BenchEngine, args: argparse.Namespace, seed: list[int]) -> float:
    """Return milliseconds to the first token of prompts that share `--prefix-len` tokens with an
    earlier prompt."""
    [prefix] = token_prompts(1, args.prefix_len, engine.vocab_size, [*seed, 0])
    tails = token_prompts(8, args.input_len, engine.vocab_size, [*seed, 1])
    engine.generate([prefix], 1)
    metrics = engine.generate([prefix + tail for tail in tails], 1)
    return statistics.median(m.first_token_time - m.arrival_time for m in metrics) * 1e3


def _longest_gap_ms(engine: BenchEngine, args: argparse.Namespace, seed: list[int]) -> float:
    """Return the longest wait of decoding streams for a token, in milliseconds, while prompts of
    `--prefix-len` tokens are computed."""
    streams = token_prompts(args.num_streams, 1, engine.vocab_size, [*seed, 0])
    prompts = token_prompts(4, args.prefix_len, engine.vocab_size, [*seed, 1])
    times = [time.perf_counter()]
    stats = engine.llm.stats
    stats.observer = lambda: times.append(time.perf_counter())
    try:
        engine.generate(streams + prompts, args.output_len)
    finally:
        stats.observer = None
    return max(b - a for a, b in pairwise(times)) * 1e3


MEASURES: dict[str, Callable[[BenchEngine, argparse.Namespace, list[int]], float]] = {
    "tpot_ms": _tpot_ms,
    "shared_prefix_ttft_ms": _shared_prefix_ttft_ms,
    "longest_gap_ms": _longest_gap_ms,
}
