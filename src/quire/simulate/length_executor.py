"""An executor that only knows lengths: a step takes a few array operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import ModelOutput, SchedulerOutput, StepTimes
from quire.core.config import StateConfig
from quire.executor.base import Pending
from quire.simulate.clock import VirtualClock
from quire.simulate.executor import ClockedExecutor, ModelledStep, step_seconds
from quire.simulate.stages import ModelledStage


class LengthExecutor(ClockedExecutor):
    """Samples token 0 for every sequence whose last token is computed, at a model's times.

    The host's part of a step takes time when the step is submitted, the device's part after the
    steps before it. So a step scheduled ahead hides the host's part behind the device's. Each stage
    computes a step once it has its rows and is free.

    Attributes:
        busy: seconds that each stage has computed.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        max_num_seqs: int,
        clock: VirtualClock,
        stages: Sequence[ModelledStage],
        states: StateConfig | None = None,
    ) -> None:
        super().__init__(num_blocks, clock, states)
        self._stages = stages
        self._free_at = [0.0] * len(stages)
        self.busy = [0.0] * len(stages)
        self._lengths = np.zeros(max_num_seqs, dtype=np.int64)
        self._unused = list(range(max_num_seqs))
        self._row: dict[str, int] = {}
        self._version = 0
        self._rows = np.zeros(0, dtype=np.int64)

    def submit(self, batch: SchedulerOutput, ahead: Pending | None = None) -> ModelledStep:
        """Begin a step; it ends when its result is requested, or later."""
        output = ModelOutput(self._sample(batch))
        cost = self._stages[0].cost
        host = cost.host_seconds(len(batch.request_ids))
        more = (batch.num_passes - 1) * (1.0 - cost.turn_share) * host
        new = len(batch.new_sequences) * self._stages[0].request_seconds
        self._clock.advance(host + more + new)
        end, slowest, rows = self._clock(), 0.0, int(batch.num_scheduled_tokens.sum())
        for number, stage in enumerate(self._stages):
            device = batch.num_passes * (step_seconds(stage.cost, batch) - host)
            there = end + stage.link_seconds + rows * stage.row_seconds
            end = self._free_at[number] = max(there, self._free_at[number]) + device
            self.busy[number] += device
            slowest = max(slowest, device)
        output.times, output.num_passes = StepTimes(model=slowest), batch.num_passes
        return ModelledStep(self._clock, end, output)

    def _sample(self, batch: SchedulerOutput) -> NDArray[np.int64]:
        for name in batch.removed:
            self._unused.append(self._row.pop(name))
        for new in batch.new_sequences:
            row = self._row[new.request_id] = self._unused.pop()
            self._lengths[row] = len(new.token_ids)
        if batch.batch_version != self._version:
            self._version, names = batch.batch_version, batch.request_ids
            self._rows = np.array([self._row[name] for name in names], dtype=np.int64)
        lengths = self._lengths[self._rows]
        samples = batch.num_computed_tokens + batch.num_scheduled_tokens >= lengths
        most = batch.max_new_tokens
        yields = samples if most is None else samples * most
        self._lengths[self._rows] = lengths + yields
        return np.where(np.arange(batch.width) < yields[:, None], 0, -1)
