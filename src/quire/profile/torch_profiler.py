"""Torch's profiler, with the native ops next to its events."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from quire.core.config import ProfilerConfig
from quire.core.errors import ConfigError
from quire.ops.op_times import OpMeter, OpRuns
from quire.profile.trace_file import LABELS, RUNS, TORCH, TraceFacts
from quire.profile.worker_profiler import WorkerProfiler
from quire.system import env

logger = logging.getLogger(__name__)

MAX_OP_RUNS = 500_000
"""Maximum native ops of each plan in a trace; 24 MB while recording."""
CLOCK_READINGS = 20
_WRITER = (sys.executable, "-m", "quire.profile.trace_file")


class TorchProfiler(WorkerProfiler):
    """Writes `quire_PID.NUMBER.pt.trace.json[.gz]` into the configured folder.

    Steps wait only for the end of the recording. A thread takes the trace, and a separate process
    writes the file, so that Python's lock is free for the steps. A full disk gives one warning.

    Args:
        meters: their native ops become part of the trace.

    Attributes:
        files: names of the traces completed since the last start, in the configured folder.
        failures: why other traces could not be written.

    Raises:
        ConfigError: the folder cannot be created.
    """

    def __init__(self, config: ProfilerConfig, meters: Sequence[OpMeter]) -> None:
        super().__init__(config)
        self.files: list[str] = []
        self.failures: list[str] = []
        self._config = config
        self._meters = meters
        self._writer: threading.Thread | None = None
        self._number = 0
        self._folder = Path(config.torch_profiler_dir)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"The folder for traces, {self._folder}, cannot be created: {error.strerror}.",
                param="--profiler-config",
            ) from None
        env.quiet_torch_profiler()
        self._warm_up()

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

    def _warm_up(self) -> None:
        """Start torch's profiler once; its first start takes a second."""
        with self._new_profile():
            pass

    def _new_profile(self) -> profile:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        return profile(
            activities=activities,
            record_shapes=self._config.torch_profiler_record_shapes,
            profile_memory=self._config.torch_profiler_with_memory,
            with_stack=self._config.torch_profiler_with_stack,
            with_flops=self._config.torch_profiler_with_flops,
        )

    def _start(self) -> None:
        for meter in self._meters:
            meter.trace_ops(MAX_OP_RUNS)
        self._profile = self._new_profile()
        self._profile.start()

    def _stop(self) -> None:
        self._profile.stop()
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
        )
        previous, recorded = self._writer, self._profile
        self._number += 1
        suffix = ".pt.trace.json" + (".gz" if self._config.torch_profiler_use_gzip else "")
        path = self._folder / f"quire_{os.getpid()}.{self._number}{suffix}"

        def write() -> None:
            if previous is not None:
                previous.join()
            self._write(path, recorded, runs, facts)

        self._writer = threading.Thread(target=write, name="trace-writer")
        self._writer.start()

    def _write(
        self, path: Path, recorded: profile, runs: Sequence[OpRuns], facts: TraceFacts
    ) -> None:
        parts: str | None = None
        try:
            parts = tempfile.mkdtemp(prefix=".trace-", dir=self._folder)
            recorded.export_chrome_trace(str(Path(parts) / TORCH))
            labels = [label for each in runs for label in each.labels]
            (Path(parts) / LABELS).write_bytes(facts.encode(labels))
            np.save(Path(parts) / RUNS, _joined(runs))
            done = subprocess.run(
                [*_WRITER, parts, str(path)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise OSError(done.stderr.strip().rpartition("\n")[2])
            self.files.append(path.name)
            logger.info("Wrote a trace of %d native ops: %s", sum(len(r.runs) for r in runs), path)
        except (OSError, RuntimeError) as error:  # torch has no error of its own for a full disk
            reason = getattr(error, "strerror", None) or str(error)
            self.failures.append(reason)
            logger.warning("The trace %s could not be written: %s", path, reason)
        finally:
            if parts is not None:
                shutil.rmtree(parts, ignore_errors=True)

    def _region(self, name: str) -> AbstractContextManager[object]:
        region: AbstractContextManager[object] = record_function(name)
        return region


def _clock_offset_ns() -> int:
    """Return the wall clock minus the monotonic one, from undisturbed readings."""
    readings = [
        (time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(CLOCK_READINGS)
    ]
    before, wall, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return wall - (before + after) // 2


def _joined(runs: Sequence[OpRuns]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return all runs in order of their start, with indices into the concatenated labels."""
    tables, offset = [], 0
    for each in runs:
        table = each.runs.copy()
        table[:, 0] += offset
        offset += len(each.labels)
        tables.append(table)
    joined = np.concatenate(tables)
    return joined[np.argsort(joined[:, 1], kind="stable")]
