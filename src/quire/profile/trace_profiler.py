"""Traces of steps and native ops, without torch: what `/start_profile` records by default."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quire.core.config import ProfilerConfig
from quire.profile.trace_file import LABELS, RUNS, Step, TraceFacts
from quire.profile.worker_profiler import WorkerProfiler

if TYPE_CHECKING:
    from quire.ops.op_times import OpMeter, OpRuns

logger = logging.getLogger(__name__)

MAX_OP_RUNS = 500_000
"""Maximum native ops of each plan in a trace; 24 MB while recording."""
KEPT_TRACES = 8
"""Traces in the default folder; a new one replaces the oldest."""
CLOCK_READINGS = 20
_WRITER = (sys.executable, "-m", "quire.profile.trace_file")


class TraceProfiler(WorkerProfiler):
    """Writes `quire_PID.NUMBER.trace.json.gz` into the folder for traces.

    Steps wait only for the end of the recording. A thread takes the trace, and a separate process
    writes the file, so that Python's lock is free for the steps. A full disk gives one warning.

    Args:
        meters: their native ops are the trace.

    Attributes:
        files: names of the traces completed since the last start, in the folder.
        failures: why other traces could not be written.
    """

    kind = ""
    """Part of the file's name."""

    def __init__(self, config: ProfilerConfig, meters: Sequence[OpMeter]) -> None:
        super().__init__(config)
        self.files: list[str] = []
        self.failures: list[str] = []
        self._suffix = ".trace.json" + (".gz" if config.torch_profiler_use_gzip else "")
        self._folder = config.folder
        self._limited = not config.torch_profiler_dir
        self._meters = meters
        self._recorded_steps: list[Step] = []
        self._writer: threading.Thread | None = None
        self._number = 0

    @property
    def writing(self) -> bool:
        """Return whether a trace is being written."""
        return self._writer is not None and self._writer.is_alive()

    def start(self) -> None:
        if not self.active:
            self.files, self.failures = [], []
        super().start()

    def shutdown(self) -> None:
        super().shutdown()
        if self._writer is not None:
            self._writer.join()

    def _start(self) -> None:
        self._recorded_steps = []
        for meter in self._meters:
            meter.trace_ops(MAX_OP_RUNS)

    def _stop(self) -> None:
        runs = [meter.op_runs() for meter in self._meters]
        for meter in self._meters:
            meter.trace_ops(0)
        if any(len(each.runs) >= MAX_OP_RUNS for each in runs):
            logger.warning(
                "The trace has only the first %d native ops. Record fewer steps.", MAX_OP_RUNS
            )
        facts = TraceFacts(
            pid=os.getpid(),
            thread=threading.get_native_id(),
            clock_offset_ns=_clock_offset_ns(),
            labels=[label for each in runs for label in each.labels],
            steps=self._recorded_steps,
        )
        previous, recorder = self._writer, self._recorder()
        self._number += 1
        path = self._folder / f"quire_{os.getpid()}.{self._number}{self.kind}{self._suffix}"

        def write() -> None:
            if previous is not None:
                previous.join()
            self._write(path, _joined(runs), facts, recorder)

        self._writer = threading.Thread(target=write, name="trace-writer")
        self._writer.start()

    def _recorder(self) -> object:
        """Return what `_export` needs of this recording."""
        return None

    def _export(self, recorder: object, folder: Path) -> None:
        """Write the parts of the trace that are no native ops into a folder."""

    def _write(
        self,
        path: Path,
        runs: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
        facts: TraceFacts,
        recorder: object,
    ) -> None:
        import shutil
        import subprocess
        import tempfile

        parts: str | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            parts = tempfile.mkdtemp(prefix=".trace-", dir=path.parent)
            self._export(recorder, Path(parts))
            (Path(parts) / LABELS).write_bytes(facts.encode())
            np.save(Path(parts) / RUNS, runs)
            done = subprocess.run(
                [*_WRITER, parts, str(path)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise OSError(done.stderr.strip().rpartition("\n")[2])
            self.files.append(path.name)
            logger.info("Wrote a trace of %d native ops: %s", len(runs), path)
            if self._limited:
                _remove_oldest(path.parent)
        except (OSError, RuntimeError) as error:  # torch has no error of its own for a full disk
            reason = getattr(error, "strerror", None) or str(error)
            self.failures.append(reason)
            logger.warning("The trace %s could not be written: %s", path, reason)
        finally:
            if parts is not None:
                shutil.rmtree(parts, ignore_errors=True)

    def _region(self, name: str) -> AbstractContextManager[object]:
        return self._timed(name)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begin = time.monotonic_ns()
        try:
            yield
        finally:
            self._recorded_steps.append(Step(name, begin, time.monotonic_ns() - begin))


def _remove_oldest(folder: Path) -> None:
    """Remove all but the newest `KEPT_TRACES` traces of a folder."""
    traces = sorted(folder.glob("quire_*.trace.json*"), key=lambda path: path.stat().st_mtime)
    for path in traces[:-KEPT_TRACES]:
        path.unlink(missing_ok=True)


def _clock_offset_ns() -> int:
    """Return the wall clock minus the monotonic one, from undisturbed readings."""
    readings = [
        (time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(CLOCK_READINGS)
    ]
    before, wall, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return wall - (before + after) // 2


def _joined(runs: Sequence[OpRuns]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return all runs in order of their start, with indices into the concatenated labels."""
    tables, offset = [np.zeros((0, 6), np.int64)], 0
    for each in runs:
        table = each.runs.copy()
        table[:, 0] += offset
        offset += len(each.labels)
        tables.append(table)
    joined = np.concatenate(tables)
    return joined[np.argsort(joined[:, 1], kind="stable")]
