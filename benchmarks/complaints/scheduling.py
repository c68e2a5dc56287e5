"""Complaints about who waits for whom."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks.bars.bar import Seen
from benchmarks.bars.measure import run_module
from benchmarks.complaints.scenario import Scenario, batch, engine, median, rates, seen
from quire import SamplingParams
from quire.bench.kernels.limits import measured
from quire.bench.serving.workload import text_prompts
from quire.bench.split import between, read_stats
from quire.core.batch import ModelOutput, SchedulerOutput, token_columns
from quire.core.config import CacheConfig, SchedulerConfig
from quire.core.errors import QuireError
from quire.core.request import Request
from quire.explain.fit import rates_of
from quire.frontend.input import input_processor
from quire.models.cost import roofline
from quire.scheduler.scheduler import Scheduler

BLOCK, BUDGET = 16, 512


def _scheduler(num_blocks: int, budget: int) -> Scheduler:
    limits = SchedulerConfig(max_model_len=8192, max_num_seqs=8, max_num_batched_tokens=budget)
    return Scheduler(limits, CacheConfig(BLOCK, num_blocks))


def _request(name: str, tokens: list[int], output_len: int) -> Request:
    params = SamplingParams(max_tokens=output_len, ignore_eos=True)
    return Request(name, tokens, params, arrival_time=0.0, max_model_len=8192)


def _compute(scheduler: Scheduler) -> SchedulerOutput:
    """A step, in which whoever is computed to the end gets a token."""
    given = scheduler.schedule(0.0)
    ends = (given.num_computed_tokens + given.num_scheduled_tokens).tolist()
    requests = [scheduler.requests[name] for name in given.request_ids]
    done = [end >= request.num_tokens for request, end in zip(requests, ends, strict=True)]
    scheduler.update(given, ModelOutput(token_columns([[7 if d else -1] for d in done])), 0.0)
    return given


def prefix_hits(repetitions: int) -> Seen:
    """7883: 12 of 16 blocks cached and in use, 4 free: what a prompt of 15 blocks is charged."""
    scheduler = _scheduler(16, 64)
    scheduler.add(_request("first", [5] * 12 * BLOCK, 3))
    for _ in range(3):
        _compute(scheduler)
    scheduler.add(_request("second", [5] * 15 * BLOCK, 2))
    given = scheduler.schedule(0.0)
    charged = dict(zip(given.request_ids, given.num_scheduled_tokens.tolist(), strict=True))
    if "second" not in charged:
        raise QuireError("It is not admitted.")
    return seen([charged["second"] / (3 * BLOCK)])


def full_steps(repetitions: int) -> Seen:
    """1562: by how much a step misses its budget while prompts wait."""
    scheduler = _scheduler(2048, BUDGET)
    for i in range(6):
        scheduler.add(_request(str(i), [i] * 3000, 64))
    missing = []
    while scheduler.stats().num_waiting or not missing:
        missing.append(float(BUDGET - _compute(scheduler).num_scheduled_tokens.sum()))
    return seen([max(missing[:-1])], steps=len(missing))


def bounded_gaps(repetitions: int) -> Seen:
    """1562: 8 streams' gaps while prompts of 1,500 tokens arrive, p99, over those without."""
    words = "--model opt-125m --load-format dummy --dtype bfloat16 --num-streams 8 --input-len 64"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "row.json"
        run_module(
            "quire", "bench", "interference", *words.split(),
            "--num-arrivals=2", "--arrival-len=1500", "--idle-tokens=24",
            f"--repetitions={repetitions}", f"--json={file}",
        )  # fmt: skip
        [row] = json.loads(file.read_text())
    facts = {name: row[name] for name in ("ttft_s", "itl_p99_ms", "idle_p99_ms")}
    low, high = row["min"]["p99_ratio"], row["max"]["p99_ratio"]
    return Seen(row["p99_ratio"], low, high, repetitions, facts)


def first_of_many(repetitions: int) -> Seen:
    """13259: the share of 256 texts that were tokenized when the first token was out."""
    counted, found = [0], []
    original = input_processor.tokenize

    def counting(*args: object) -> object:
        counted[0] += 1
        return original(*args)

    with engine("embedded") as llm, mock.patch.object(input_processor, "tokenize", counting):

        def observe() -> None:
            if llm.stats.generation_tokens and not found:
                found.append(counted[0] / 256)

        llm.stats.observer = observe
        params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
        llm.generate(text_prompts(256, 64, [3]), params, use_tqdm=False)
    return seen(found)


def first_token_slope(repetitions: int) -> Seen:
    """8086: how much longer the first token takes a prompt token more, over the cost model's."""
    lengths = (256, 512, 1024, 1792)
    ratios = []
    limits = measured()  # now: this machine's rates vary
    with engine(enable_prefix_caching=False) as llm:
        cost = roofline(llm.resolved.config, rates_of(llm.resolved.config, limits))
        predicted = [cost.seconds(n, 1, n, n * (n + 1) // 2) for n in lengths]
        batch(llm, 1, 512, 2)
        for repetition in range(repetitions):
            took = []
            for length in lengths:
                m = batch(llm, 1, length, 2, repetition)[0].metrics
                took.append(m.first_token_time - m.first_scheduled_time)
            slopes = [float(np.polyfit(lengths, seconds, 1)[0]) for seconds in (took, predicted)]
            ratios.append(slopes[0] / slopes[1])
    # As far from 1 as it is, whichever is larger.
    return seen([math.exp(abs(math.log(ratio))) for ratio in ratios], ratios=ratios)


def queue_beside(repetitions: int) -> Seen:
    """17568: a stream's rate with 32 in the queue, over its rate with nobody there."""
    lengths = [40 + 7 * (i % 8) for i in range(40)]
    found = []
    with engine(max_num_seqs=8, max_itl_stretch=1.5, enable_prefix_caching=False) as llm:
        batch(llm, 8, 64, 8)
        for repetition in range(repetitions):
            alone = rates(batch(llm, 8, 64, lengths[:8], 2 * repetition))
            beside = rates(batch(llm, 40, 64, lengths, 2 * repetition + 1))[:8]
            found.append(min(b / a for a, b in zip(alone, beside, strict=True)))
    return seen(found)


def preparing(repetitions: int) -> Seen:
    """6879: the share of the time that goes to a step's inputs, 64 streams."""
    found = []
    with engine() as llm:
        batch(llm, 64, 16, 4)
        for repetition in range(repetitions):
            before = read_stats(llm.stats)
            batch(llm, 64, 16, 48, repetition)
            found.append(between(before, read_stats(llm.stats)).shares["prepare"])
    return seen([median(found)])


SCENARIOS = (
    Scenario(
        7883, "scheduling ignores prefix hits",
        "tokens charged over those not cached, 12 of 16 blocks cached and 4 free", 1.0, prefix_hits,
        at_most=True,
    ),
    Scenario(
        1562, "Dynamic SplitFuse", "tokens by which a step misses its budget", BLOCK, full_steps,
        "tokens", at_most=True,
    ),
    Scenario(
        1562, "Dynamic SplitFuse", "p99 gap while prompts of 1,500 tokens arrive / idle", 2.0,
        bounded_gaps, at_most=True,
    ),
    Scenario(
        13259, "the model waits until all requests are added",
        "share of 256 texts tokenized when the first token is out", 0.1, first_of_many, "%",
        at_most=True,
    ),
    Scenario(
        8086, "TTFT grows linearly", "slope of prefill, seen and predicted, apart by", 1.3,
        first_token_slope, at_most=True,
    ),
    Scenario(
        17568, "one request 30 tok/s, many 1.5",
        "slowest of 8 streams with 32 queued / with an empty queue", 0.7, queue_beside,
    ),
    Scenario(
        6879, "Python lists copied into tensors", "share of a step that prepares its inputs, 64",
        0.02, preparing, "%", at_most=True,
    ),
)  # fmt: skip
