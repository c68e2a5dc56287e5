"""What a steady decode step costs, counted: not in the context's length, hardly in sequences."""

from __future__ import annotations

import statistics
import sys
import tracemalloc

import numpy as np

from quire.core.batch import ModelOutput
from quire.core.config import CacheConfig, SchedulerConfig
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.scheduler.scheduler import Scheduler

STEPS = 64


def decoding(num_seqs: int, context: int) -> Scheduler:
    """A scheduler whose requests all decode; their contexts end anywhere in a block."""
    limits = SchedulerConfig(8192, num_seqs, num_seqs * (context + num_seqs))
    s = Scheduler(limits, CacheConfig(16, num_seqs * (context // 16 + 20)))
    for i in range(num_seqs):
        params = SamplingParams(max_tokens=200)
        prompt = [i] * (context + i % 16)
        s.add(Request(str(i), prompt, params, arrival_time=0.0, max_model_len=8192))
    step(s)
    return s


def step(s: Scheduler) -> None:
    batch = s.schedule(0.0)
    s.update(batch, ModelOutput(np.full((len(batch.request_ids), 1), 500)), 0.0)


def allocated(context: int) -> float:
    s = decoding(4, context)
    peaks = []
    tracemalloc.start()
    for _ in range(STEPS):
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        step(s)
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
    return statistics.median(peaks)  # an array that grows is copied once in many steps


def test_memory_of_a_step_does_not_grow_with_the_context() -> None:
    assert abs(allocated(4000) - allocated(100)) < 256


def calls(num_seqs: int) -> float:
    """Python functions called in a step, mean."""
    s = decoding(num_seqs, 50)
    count = 0

    def on_event(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(on_event)
    try:
        for _ in range(STEPS):
            step(s)
    finally:
        sys.setprofile(None)
    return count / STEPS


def test_calls_of_a_step_grow_with_the_blocks_begun_only() -> None:
    few, many = calls(4), calls(128)
    assert (many - few) / 124 < 10 / 16  # each sequence begins a block in one of 16 steps
