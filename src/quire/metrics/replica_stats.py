"""Counters of each replica of an engine, beside those of the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from quire.core.messages import CoreTimes, SchedulerStats
from quire.metrics.progress_log import LOG_INTERVAL, ProgressLog
from quire.metrics.stats import EngineStats
from quire.metrics.times import CORE_PARTS


def engine_stats(numbers: range, block_size: int) -> EngineStats:
    """Return the counters of an engine with these replicas; if there are several, also of each."""
    whole = EngineStats()
    whole.first_replica, whole.block_size = numbers[0], block_size
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
        whole: the counters of all replicas together.
    """

    def __init__(self, whole: EngineStats) -> None:
        super().__init__()
        self.siblings: Sequence[ReplicaStats] = ()
        self.whole = whole
        self.front = whole.front
        self._log = _NoLog()

    def seconds(self) -> dict[str, float]:
        """Return the core's times; those of the front end are the whole's."""
        found = super().seconds()
        return {name: found[name] for name in ("queue", *CORE_PARTS)}

    def on_ready(self, num_blocks: int) -> None:
        super().on_ready(num_blocks)
        self.whole.scheduler = self._added()

    def on_step(
        self, scheduler: SchedulerStats | None, now: float, times: CoreTimes | None = None
    ) -> None:
        begins = self.core is None and times is not None  # the means are of more cores from now on
        if begins or now - self.last_step > LOG_INTERVAL:  # or an earlier pause counts from now on
            self.whole.restart_log()
        super().on_step(scheduler, now, times)
        added = self._added()
        if added is not None and scheduler is not None:
            added.step_tokens = scheduler.step_tokens
        self.whole.on_step(added, now, self._mean_times())

    def forget_core(self) -> None:
        super().forget_core()
        self.whole.scheduler = self._added()
        self.whole.core = self._mean_times()
        self.whole.restart_log()

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


def _for_both(name: str) -> Callable[..., None]:
    """Return a method that records an event for a replica and for the whole."""
    record = getattr(EngineStats, name)

    def record_both(self: ReplicaStats, *args: Any) -> None:
        record(self, *args)
        record(self.whole, *args)

    return record_both


for _name in (
    "count_restart", "count_retry", "on_first_token", "on_tokens", "on_sequence_finished",
    "on_request_finished",
):  # fmt: skip
    setattr(ReplicaStats, _name, _for_both(_name))


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
