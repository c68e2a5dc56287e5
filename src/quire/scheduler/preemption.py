"""Preemption: a running request loses its blocks and waits again; and steps that are undone,
because they failed or the step ahead of them did."""

from __future__ import annotations

from collections.abc import Set

from quire.core.batch import SchedulerOutput
from quire.core.request import Request, RequestStatus
from quire.scheduler.state import SchedulerState


class Preemption:
    """Moves running requests back to the queue, usually the last one; takes back copies and cache
    entries of steps that did not happen."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._kv = state.kv
        self._running = state.running
        self._steps = state.steps

    def preempt_last(self, *, sound: bool = True) -> None:
        """Preempt the last running request; see `preempt`."""
        self.preempt(len(self._running) - 1, sound=sound)

    def preempt(self, row: int, *, sound: bool = True) -> None:
        """Free the blocks of a running request and put it back into the queue.

        Args:
            sound: its blocks hold correct values; else they do not enter the prefix cache.
        """
        running = self._running
        request, num_computed = running.requests[row], int(running.num_computed[row])
        if sound:
            self._kv.enter(request, int(running.certain()[row]))
            swapped = int(running.resumes_at()[row])
            if self._should_swap(request, swapped):
                self._kv.swap_out(request, swapped)
        running.remove(row)
        self._kv.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        request.preempted_time, request.decodes_since = self._state.events.now, None
        self._state.num_preemptions += 1
        self._steps.removed.append(request.request_id)
        self._state.events.note("preempted", request, num_computed)
        self._state.waiting.push(request)

    def preempt_behind(self, lost: Set[str]) -> None:
        """Preempt, from the end, until none of `lost` runs; their blocks may be wrong."""
        while not lost.isdisjoint(self._running.request_ids):
            self.preempt_last(sound=False)

    def drop_in_flight(self) -> None:
        """Drop all steps in flight, which never began, and preempt all running requests."""
        if not self._steps.in_flight:
            return
        for flight in self._steps.in_flight:
            self.undo_copies(flight.step, failed=False)
            self._kv.forget(flight.entered)
            self._steps.removed += flight.step.removed  # the executor never received them
        self._steps.in_flight.clear()
        # Their counters include the dropped steps, and they may share blocks never written.
        while len(self._running):
            self.preempt_last(sound=False)

    def undo_copies(self, step: SchedulerOutput, *, failed: bool) -> None:
        """Take back all loads and stores of a step.

        Args:
            failed: the step raised an error; else it never began.
        """
        self.undo_loads(step, failed=failed)
        if step.block_copies:
            self._kv.undo_copies(step.block_copies)

    def undo_loads(self, step: SchedulerOutput, *, failed: bool) -> None:
        """Take back the loads of a step; their requests wait again."""
        for request in self._state.loading.undo(step.step, failed=failed):
            self._state.events.note("load_failed", request)
            self._state.waiting.push(request)

    def _should_swap(self, request: Request, num_tokens: int) -> bool:
        """Return whether to keep `num_tokens` of a request in the host tier while it waits."""
        mode, tier_cost = self._state.config.preemption_mode, self._state.tier_cost
        if mode == "recompute" or not num_tokens or not self._kv.can_swap_out(request, num_tokens):
            return False
        return mode == "swap" or tier_cost is None or tier_cost.swap_pays(num_tokens)
