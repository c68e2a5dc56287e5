"""Counters of each replica of an engine, beside those of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from quire.core.messages import CoreTimes, SchedulerStats
from quire.core.outputs import RequestMetrics
from quire.metrics.progress_log import ProgressLog
from quire.metrics.recorded import Arrival
from quire.metrics.stats import EngineStats
from quire.metrics.times import CORE_PARTS


def engine_stats(numbers: range) -> EngineStats:
    """Return the counters of an engine with these replicas; if there are several, also of each."""
    whole = EngineStats()
    whole.first_replica = numbers[0]
    if numbers[1:]:
        replicas = [ReplicaStats(whole) for _ in numbers]
        whole.replicas = replicas
        for replica in replicas:
            replica.siblings = replicas
    return whole


class ReplicaStats(EngineStats):
    """The counters of one replica. What it observes also counts for the whole.

    What belongs to the server, such as refused requests, is only in the whole.

    Attributes:
        siblings: all replicas of the engine.
    """

    def __init__(self, whole: EngineStats) -> None:
        super().__init__()
        self.siblings: Sequence[ReplicaStats] = ()
        self._whole = whole
        self.front = whole.front
        self._log = _NoLog()

    def seconds(self) -> dict[str, float]:
        """Return the core's times; those of the front end are the whole's."""
        found = super().seconds()
        return {name: found[name] for name in ("queue", *CORE_PARTS)}

    def on_ready(self, num_blocks: int) -> None:
        super().on_ready(num_blocks)
        self._whole.scheduler = self._added()

    def on_step(
        self, scheduler: SchedulerStats | None, now: float, times: CoreTimes | None = None
    ) -> None:
        if self.core is None and times is not None:
            self._whole.restart_log()  # the means are of more cores from now on
        super().on_step(scheduler, now, times)
        added = self._added()
        if added is not None and scheduler is not None:
            added.step_tokens = scheduler.step_tokens
        self._whole.on_step(added, now, self._mean_times())

    def forget_core(self) -> None:
        super().forget_core()
        self._whole.scheduler = self._added()
        self._whole.core = self._mean_times()
        self._whole.restart_log()

    def count_restart(self) -> None:
        super().count_restart()
        self._whole.count_restart()

    def count_retry(self) -> None:
        super().count_retry()
        self._whole.count_retry()

    def on_first_token(
        self, metrics: RequestMetrics, prompt_tokens: int, cached: int, repeated: int = 0
    ) -> None:
        super().on_first_token(metrics, prompt_tokens, cached, repeated)
        self._whole.on_first_token(metrics, prompt_tokens, cached, repeated)

    def on_tokens(self, count: int, seconds: float | None) -> None:
        super().on_tokens(count, seconds)
        self._whole.on_tokens(count, seconds)

    def on_sequence_finished(
        self, reason: str, tokens: int, decode_seconds: float, prompt_tokens: int = 0
    ) -> None:
        super().on_sequence_finished(reason, tokens, decode_seconds, prompt_tokens)
        self._whole.on_sequence_finished(reason, tokens, decode_seconds, prompt_tokens)

    def on_request_finished(
        self,
        m: RequestMetrics,
        prompt_tokens: int,
        tokens: int,
        n: int,
        max_tokens: int | None,
        arrival: Arrival | None = None,
    ) -> None:
        super().on_request_finished(m, prompt_tokens, tokens, n, max_tokens)
        self._whole.on_request_finished(m, prompt_tokens, tokens, n, max_tokens, arrival)

    def _added(self) -> SchedulerStats | None:
        """Return the sums over all replicas."""
        added: SchedulerStats | None = _sum([replica.scheduler for replica in self.siblings])
        return added

    def _mean_times(self) -> CoreTimes | None:
        """Return the mean over the running cores: parts add up to the wall time of one."""
        found = [replica.core for replica in self.siblings if replica.core is not None]
        if not found:
            return None
        added: CoreTimes = _sum(found)
        return CoreTimes(*(seconds / len(found) for seconds in msgspec.structs.astuple(added)))


class _NoLog(ProgressLog):
    """Logs nothing: the whole engine writes one line for all replicas."""

    def on_step(self, stats: EngineStats, now: float) -> None:
        """Do nothing."""


def _sum(values: Sequence[Any]) -> Any:
    """Return the sum of numbers, lists or structs of them, field by field; skip None."""
    found = [value for value in values if value is not None]
    if not found:
        return None
    first = found[0]
    if isinstance(first, msgspec.Struct):
        columns = zip(*map(msgspec.structs.astuple, found), strict=True)
        return type(first)(*map(_sum, columns))
    if isinstance(first, list):
        return [_sum(column) for column in zip(*found, strict=True)]
    return sum(found)
