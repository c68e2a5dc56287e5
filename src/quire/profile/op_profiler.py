"""Counts a worker's steps and times its ops: the source of an `OpProfile`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from quire.core.batch import Column, ModelOutput, SchedulerOutput
from quire.core.op_profile import OpProfile
from quire.ops.op_times import OpMeter

_EMPTY = OpProfile(0, 0.0, 0.0, 0, 0, 0, [])


class OpProfiler:
    """Counts from `start` until `stop`, or for a number of steps.

    Args:
        meters: of the model's ops.
        draft_meters: of the ops of what drafts for it.
        waited: returns the seconds that each rank has waited for others so far.

    Attributes:
        active: whether it counts.
    """

    def __init__(
        self,
        meters: Sequence[OpMeter],
        draft_meters: Sequence[OpMeter] = (),
        waited: Callable[[], list[float]] = list,
    ) -> None:
        self.active = False
        self._waited = waited
        self._first_waited: list[float] = []
        self._meters, self._draft_meters = meters, draft_meters
        self._max_steps = 0
        self._profile = _EMPTY

    def start(self, max_steps: int) -> None:
        """Start a new count of this many steps."""
        self._profile = _EMPTY
        self._max_steps = max_steps
        self._first_waited = self._waited()
        self._count(on=True)

    def note(self, batch: SchedulerOutput, seconds: float, output: ModelOutput) -> None:
        """Record a computed step."""
        seen, times, passes = self._profile, output.times, output.num_passes
        context = int((batch.num_computed_tokens + batch.num_scheduled_tokens).sum())
        self._profile = OpProfile(
            steps=seen.steps + passes,
            wall_seconds=seen.wall_seconds + seconds,
            model_seconds=seen.model_seconds + times.model,
            tokens=seen.tokens + batch.total_num_scheduled_tokens,
            num_seqs=seen.num_seqs + len(batch.request_ids) * passes,
            context_tokens=seen.context_tokens + context * passes,
            ops=[],
            prepare_seconds=seen.prepare_seconds + max(0.0, times.prepare - output.draft_seconds),
            sample_seconds=seen.sample_seconds + times.sample,
            draft_seconds=seen.draft_seconds + output.draft_seconds,
            num_draft_tokens=seen.num_draft_tokens + _total(output.drafted),
            num_accepted_tokens=seen.num_accepted_tokens + _total(output.accepted),
        )
        if self._profile.steps >= self._max_steps:
            self._end()

    def stop(self) -> OpProfile:
        """Return the counts since the last start; empty without one."""
        if self.active:
            self._end()
        return self._profile

    @property
    def steps(self) -> int:
        """Return the steps counted since the last start."""
        return self._profile.steps

    def _end(self) -> None:
        ops, draft_ops = (
            [op for meter in meters for op in meter.op_times()]
            for meters in (self._meters, self._draft_meters)
        )
        pairs = zip(self._first_waited, self._waited(), strict=True)
        waits = [last - first for first, last in pairs]
        self._profile = msgspec.structs.replace(
            self._profile, ops=ops, draft_ops=draft_ops, rank_waits=waits
        )
        self._count(on=False)

    def _count(self, *, on: bool) -> None:
        self.active = on
        for meter in (*self._meters, *self._draft_meters):
            meter.count_ops(on)


def _total(column: Column | None) -> int:
    return 0 if column is None else int(column.sum())
