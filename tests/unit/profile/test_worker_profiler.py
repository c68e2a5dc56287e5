"""Which steps a profiler records."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext

import pytest

from quire.core.config import ProfilerConfig
from quire.core.errors import ConfigError
from quire.profile import worker_profiler
from quire.profile.cuda_profiler import CudaProfiler
from quire.profile.worker_profiler import WorkerProfiler


class Recorder(WorkerProfiler):
    """Notes the names of the regions that it records, a list for each recording."""

    def __init__(self, config: ProfilerConfig, *, broken: bool = False) -> None:
        super().__init__(config)
        self.recordings: list[list[str]] = []
        self.stops = 0
        self._broken = broken

    def _start(self) -> None:
        if self._broken:
            raise RuntimeError("no profiler today")
        self.recordings.append([])

    def _stop(self) -> None:
        self.stops += 1
        if self._broken:
            raise RuntimeError("nor its end")

    def _region(self, name: str) -> AbstractContextManager[object]:
        self.recordings[-1].append(name)
        return nullcontext()

    def run(self, *names: str) -> None:
        for name in names:
            with self.step(name):
                pass


def recorder(delay: int = 0, steps: int = 0, *, broken: bool = False) -> Recorder:
    return Recorder(ProfilerConfig(delay_iterations=delay, max_iterations=steps), broken=broken)


@pytest.mark.parametrize(
    ("delay", "steps", "recorded"),
    [(0, 0, "abcdef"), (1, 0, "abcdef"), (3, 0, "cdef"), (0, 2, "ab"), (2, 3, "bcd"), (7, 1, "")],
)
def test_delay_and_maximum(delay: int, steps: int, recorded: str) -> None:
    profiler = recorder(delay, steps)
    profiler.run("x")
    profiler.start()
    profiler.run(*"abcdef")
    assert "".join(name for names in profiler.recordings for name in names) == recorded
    assert profiler.active == (not steps or not recorded)
    profiler.stop()
    assert not profiler.active
    assert profiler.stops == len(profiler.recordings)


def test_it_starts_again() -> None:
    profiler = recorder(steps=2)
    for _ in range(2):
        profiler.start()
        profiler.run(*"abc")
    assert profiler.recordings == [["a", "b"], ["a", "b"]]


def test_a_second_start_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    profiler = recorder(delay=2)
    profiler.start()
    profiler.run("a")
    with caplog.at_level(logging.WARNING):
        profiler.start()
    assert "ignored" in caplog.text
    profiler.run("b")
    assert profiler.recordings == [["b"]]


def test_a_stop_without_a_start() -> None:
    profiler = recorder()
    profiler.stop()
    profiler.stop()
    assert profiler.stops == 0


def test_a_recording_without_a_maximum_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_profiler, "MAX_STEPS", 3)
    profiler = recorder()
    profiler.start()
    profiler.run(*"abcdef")
    assert (profiler.recordings, profiler.active) == ([["a", "b", "c"]], False)
    monkeypatch.setattr(worker_profiler, "MAX_SECONDS", 0.0)
    profiler = recorder()
    profiler.start()
    profiler.run(*"abcdef")
    assert (profiler.recordings, profiler.active) == ([["a"]], False)


def test_steps_go_on_without_a_profiler_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    profiler = recorder(broken=True)
    profiler.start()
    profiler.run(*"ab")
    assert caplog.text.count("steps continue") == 1
    assert not profiler.active


def test_regions_cost_nothing_when_off() -> None:
    profiler = recorder()
    with profiler.annotate_context_manager("x"):
        pass
    assert profiler.recordings == []


def test_the_cuda_profiler_needs_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="torch sees no CUDA device"):
        CudaProfiler(ProfilerConfig("cuda"))
