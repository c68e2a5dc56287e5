"""Marks steps for a CUDA profiler that watches the process, such as Nsight Systems."""

from __future__ import annotations

from contextlib import AbstractContextManager

from quire.core.config import ProfilerConfig
from quire.core.errors import ConfigError
from quire.profile.worker_profiler import WorkerProfiler


class CudaProfiler(WorkerProfiler):
    """`cudaProfilerStart` and `cudaProfilerStop` around the steps, and NVTX ranges within.

        nsys profile --capture-range=cudaProfilerApi quire serve --profiler-config.profiler=cuda

    Raises:
        ConfigError: torch sees no CUDA device.
    """

    def __init__(self, config: ProfilerConfig) -> None:
        import torch

        if not torch.cuda.is_available():
            raise ConfigError(
                "--profiler-config asks for the CUDA profiler, but torch sees no CUDA device.",
                fix="Use --profiler-config.profiler=torch and its torch_profiler_dir.",
                param="--profiler-config",
            )
        super().__init__(config)

    def _start(self) -> None:
        from torch.cuda import profiler

        profiler.start()

    def _stop(self) -> None:
        from torch.cuda import profiler

        profiler.stop()

    def _region(self, name: str) -> AbstractContextManager[object]:
        from torch.cuda import nvtx

        region: AbstractContextManager[object] = nvtx.range(name)
        return region
