"""Controls when a worker's profiler records: start, delay, and limits of steps and time.

start        step 1   step 2   step 3   step 4   step 5
  │                   ├── recorded ──────────┤              delay_iterations 2, max_iterations 3
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from quire.core.config import ProfilerConfig

logger = logging.getLogger(__name__)

MAX_STEPS = 1000
MAX_SECONDS = 60.0
"""Limits of a recording if `max_iterations` is unset, so that no trace fills the disk."""


class WorkerProfiler(ABC):
    """Counts a worker's steps, and records the configured ones.

    Everything is called from the thread that computes the steps.

    Attributes:
        active: started, and not stopped since; it may still wait for its first step.
        recording: a recorder runs.
    """

    def __init__(self, config: ProfilerConfig) -> None:
        self.active = False
        self.recording = False
        self._delay = max(1, config.delay_iterations)
        self._max_steps = config.max_iterations or MAX_STEPS
        self._max_seconds = float("inf") if config.max_iterations else MAX_SECONDS
        self._steps = 0
        self._recorded = 0
        self._deadline = 0.0

    def start(self) -> None:
        """Record from the step that `delay_iterations` gives."""
        if self.active:
            logger.warning("The profiler is already started; this start is ignored.")
            return
        self.active = True
        self._steps = self._recorded = 0

    def stop(self) -> None:
        """End the recording, if there is one."""
        recording, self.recording, self.active = self.recording, False, False
        if not recording:
            return
        try:
            self._stop()
        except Exception:
            logger.warning("The profiler failed to stop; steps continue.", exc_info=True)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Profile one step of the worker inside the block."""
        self._begin_step()
        try:
            with self.annotate_context_manager(name):
                yield
        finally:
            self._end_step()

    def annotate_context_manager(self, name: str) -> AbstractContextManager[object]:
        """Return a named region of the recording; does nothing while there is none."""
        return self._region(name) if self.recording else nullcontext()

    def shutdown(self) -> None:
        """Stop, and finish writing."""
        self.stop()

    def _begin_step(self) -> None:
        if not self.active:
            return
        self._steps += 1
        if not self.recording and self._steps >= self._delay:
            self._deadline = time.monotonic() + self._max_seconds
            try:
                self._start()
            except Exception:  # the step continues
                logger.warning("The profiler failed to start; steps continue.", exc_info=True)
                self.active = False
            else:
                self.recording = True

    def _end_step(self) -> None:
        if not self.recording:
            return
        self._recorded += 1
        if self._recorded >= self._max_steps or time.monotonic() >= self._deadline:
            logger.info("The profiler stops after %d steps.", self._recorded)
            self.stop()

    @abstractmethod
    def _start(self) -> None:
        """Start recording."""

    @abstractmethod
    def _stop(self) -> None:
        """Stop recording."""

    @abstractmethod
    def _region(self, name: str) -> AbstractContextManager[object]:
        """Return a named part of the recording."""
