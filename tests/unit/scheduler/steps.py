"""Schedulers, requests and results of steps, for the tests of this room."""

from __future__ import annotations

from typing import Any

from quire.core.batch import ModelOutput, SchedulerOutput, token_columns
from quire.core.config import CacheConfig, SchedulerConfig
from quire.core.messages import CoreOutput
from quire.core.options import RequestInputs, RequestOptions
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.scheduler.scheduler import Scheduler

BLOCK = 16


def make(
    num_blocks: int = 64, seqs: int = 4, budget: int = 64, policy: Any = "fcfs", **cache: Any
) -> Scheduler:
    limits = SchedulerConfig(1000, seqs, budget, policy)
    return Scheduler(limits, CacheConfig(BLOCK, num_blocks, **cache))


def request(
    name: str, length: int, *, priority: int = 0, client: str = "", **params: Any
) -> Request:
    return Request(
        name,
        [ord(name[0])] * length,
        SamplingParams(**{"max_tokens": 8, **params}),
        arrival_time=0.0,
        max_model_len=1000,
        inputs=RequestInputs(RequestOptions(priority, client=client), eos_token_ids=(0,)),
    )


def step(
    s: Scheduler, token: int = 5, begin: float = 1.0, end: float = 2.0, **result: Any
) -> tuple[dict[str, int], dict[str, CoreOutput]]:
    """Run a step in which every finished row samples `token`; (tokens given, outputs)."""
    batch = s.schedule(now=begin)
    outputs = s.update(batch, sampled(s, batch, token, **result), now=end)
    s.check_integrity()
    given = dict(zip(batch.request_ids, batch.num_scheduled_tokens.tolist(), strict=True))
    return given, {o.request_id: o for o in outputs.each()}


def sampled(s: Scheduler, batch: SchedulerOutput, token: int, **result: Any) -> ModelOutput:
    """What every row whose last token is computed may sample: `token`, as often as it may.

    An image that the step reads ahead is read.
    """
    ends = (batch.num_computed_tokens + batch.num_scheduled_tokens).tolist()
    rows = zip(batch.request_ids, ends, strict=True)
    done = [name in s.requests and end >= s.requests[name].num_tokens for name, end in rows]
    most = [1] * len(done) if batch.max_new_tokens is None else batch.max_new_tokens.tolist()
    tokens = [[token] * count if d else [] for d, count in zip(done, most, strict=True)]
    if batch.read_ahead is not None:
        result = {"read_ahead": batch.read_ahead.image.digest, **result}
    return ModelOutput(token_columns(tokens), **result)


class Tokens:
    """A step takes `each` seconds per token, beside `fixed` ones, and copies take none."""

    def __init__(self, each: float = 1.0, fixed: float = 0.0) -> None:
        self._each, self._fixed = each, fixed

    def seconds(
        self, num_tokens: int, num_seqs: int, context_tokens: int, attended: int | None = None
    ) -> float:
        return self._fixed + self._each * num_tokens

    def copy_seconds(self, num_tokens: int) -> float:
        return 0.0
