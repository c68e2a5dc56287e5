"""Torch's profiler, with the native ops next to its events."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import cast

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from quire.core.config import ProfilerConfig
from quire.core.errors import ConfigError
from quire.ops.op_times import OpMeter
from quire.profile.trace_file import TORCH
from quire.profile.trace_profiler import TraceProfiler
from quire.system import env


class TorchProfiler(TraceProfiler):
    """Writes `quire_PID.NUMBER.pt.trace.json[.gz]` into the configured folder.

    Raises:
        ConfigError: the folder cannot be created.
    """

    kind = ".pt"

    def __init__(self, config: ProfilerConfig, meters: Sequence[OpMeter]) -> None:
        super().__init__(config, meters)
        self._config = config
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"The folder for traces, {self._folder}, cannot be created: {error.strerror}.",
                param="--profiler-config",
            ) from None
        env.quiet_torch_profiler()
        self._warm_up()

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
        super()._start()
        self._profile = self._new_profile()
        self._profile.start()

    def _stop(self) -> None:
        self._profile.stop()
        super()._stop()

    def _recorder(self) -> object:
        return self._profile

    def _export(self, recorder: object, folder: Path) -> None:
        cast(profile, recorder).export_chrome_trace(str(folder / TORCH))

    def _region(self, name: str) -> AbstractContextManager[object]:
        region: AbstractContextManager[object] = record_function(name)
        return region
