"""Undoes steps that failed, or that were dropped because the step ahead of them failed."""

from __future__ import annotations

from quire.core.batch import SchedulerOutput
from quire.scheduler.preemption import Preemption
from quire.scheduler.state import SchedulerState


class Undo:
    """Takes back copies, cache entries and queue positions of steps that did not happen."""

    def __init__(self, state: SchedulerState, preemption: Preemption) -> None:
        self._kv = state.kv
        self._waiting = state.waiting
        self._loading = state.loading
        self._steps = state.steps
        self._events = state.events
        self._preemption = preemption

    def drop_in_flight(self) -> None:
        """Drop all steps in flight, which never began, and preempt all running requests."""
        if not self._steps.in_flight:
            return
        for flight in self._steps.in_flight:
            self.copies(flight.step, failed=False)
            self._kv.forget(flight.entered)
            self._steps.removed += flight.step.removed  # the executor never received them
        self._steps.in_flight.clear()
        # Their counters include the dropped steps, and they may share blocks never written.
        self._preemption.preempt_all()

    def copies(self, step: SchedulerOutput, *, failed: bool) -> None:
        """Take back all loads and stores of a step.

        Args:
            failed: the step raised an error; else it never began.
        """
        self.loads(step, failed=failed)
        if step.block_copies:
            self._kv.undo_copies(step.block_copies)

    def loads(self, step: SchedulerOutput, *, failed: bool) -> None:
        """Take back the loads of a step; their requests wait again."""
        for request in self._loading.undo(step.step, failed=failed):
            self._events.note("load_failed", request)
            self._waiting.push(request)
