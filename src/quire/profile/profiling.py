"""All profilers of one worker, and their calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.config import ProfilerConfig
from quire.core.errors import InvalidRequestError
from quire.profile.op_profiler import OpProfiler
from quire.profile.trace_profiler import TraceProfiler
from quire.profile.worker_profiler import WorkerProfiler

if TYPE_CHECKING:
    from quire.ops.op_times import OpMeter
    from quire.ops.rank_group import RankGroup
    from quire.ops.torch_ops.rank_group import TorchRankGroup
    from quire.profile.python import ThreadProfile
    from quire.system.stacks import Stacks, StackSampler

MAX_OP_PROFILE_STEPS = 1000
CALLS = {
    *("start_profile", "stop_profile", "profile_status"),
    *("start_op_profile", "stop_op_profile", "op_profile_steps"),
    *("start_python_profile", "stop_python_profile", "start_stacks", "stop_stacks"),
}
"""Methods of `Profiling` that `call` runs."""


class ProfileStatus(msgspec.Struct):
    """The progress of a recording.

    Attributes:
        active: started and not stopped.
        writing: a trace is being written.
        files: names of the traces completed since the start, in the configured folder.
        failures: why other traces could not be written.
    """

    active: bool = False
    writing: bool = False
    files: list[str] = []
    failures: list[str] = []


class Profiling:
    """A worker's profilers.

    Args:
        meters: of the model's ops.
        draft_meters: of the ops of what drafts for it.
        tower_meters: of the ops that read images; traces show them.
        group: the ranks that compute the model together.

    Raises:
        ConfigError: the configured profiler cannot run here.
    """

    def __init__(
        self,
        config: ProfilerConfig,
        meters: Sequence[OpMeter],
        draft_meters: Sequence[OpMeter] = (),
        tower_meters: Sequence[OpMeter] = (),
        group: RankGroup | TorchRankGroup | None = None,
    ) -> None:
        self._trace: WorkerProfiler
        traced = [*meters, *tower_meters]
        if config.profiler == "torch":
            from quire.profile.torch_profiler import TorchProfiler

            self._trace = TorchProfiler(config, traced)
        elif config.profiler == "cuda":
            from quire.profile.cuda_profiler import CudaProfiler

            self._trace = CudaProfiler(config)
        else:
            self._trace = TraceProfiler(config, traced)
        self._ops = OpProfiler(meters, draft_meters, list if group is None else group.waited)
        self._stacks: StackSampler | None = None

    @cached_property
    def _python(self) -> ThreadProfile:  # of the core's thread; the steps' thread if steps overlap
        from quire.profile.python import ThreadProfile

        return ThreadProfile()

    def start_python_profile(self) -> None:
        self._python.start()

    def stop_python_profile(self) -> bytes:
        return self._python.stop()

    def start_stacks(self) -> None:
        """Begin to sample where this process's Python threads stand."""
        from quire.system.stacks import StackSampler

        self.stop_stacks()
        self._stacks = StackSampler()

    def stop_stacks(self) -> list[Stacks]:
        """Return the samples since the last start; none without one. Ranks add theirs."""
        sampler, self._stacks = self._stacks, None
        return [] if sampler is None else [sampler.stop()]

    @property
    def active(self) -> bool:
        """Return whether steps must be passed to `run`."""
        return self._ops.active or self._trace.active

    def run(
        self, batch: SchedulerOutput, execute: Callable[[SchedulerOutput], ModelOutput]
    ) -> ModelOutput:
        """Run `execute(batch)` under the profilers."""
        if batch.empty:
            return execute(batch)
        begin = time.monotonic()
        with self._trace.step(_step_name(batch)):
            output = execute(batch)
        if self._ops.active:
            self._ops.note(batch, time.monotonic() - begin, output)
        return output

    def call(self, method: str, args: Sequence[Any]) -> Any:
        """Run one of the methods below by name; results are plain data.

        Raises:
            InvalidRequestError: there is no such method.
        """
        if method not in CALLS:
            raise InvalidRequestError(f"the engine core has no method {method!r}.")
        return msgspec.to_builtins(getattr(self, method)(*args), builtin_types=(bytes,))

    def start_profile(self) -> bool:
        """Start recording; return False if it was already requested."""
        fresh = not self._trace.active
        self._trace.start()
        return fresh

    def stop_profile(self) -> ProfileStatus:
        """End the recording; its file is complete when `profile_status` says so."""
        self._trace.stop()
        return self.profile_status()

    def profile_status(self) -> ProfileStatus:
        trace = self._trace
        if not isinstance(trace, TraceProfiler):
            return ProfileStatus(trace.active)
        return ProfileStatus(trace.active, trace.writing, trace.files, trace.failures)

    def start_op_profile(self, max_steps: int = MAX_OP_PROFILE_STEPS) -> None:
        """Count ops in this many steps; restarts a running count."""
        self._ops.start(max_steps)

    def stop_op_profile(self) -> Any:
        """Return the `OpProfile` since the last start."""
        return self._ops.stop()

    def op_profile_steps(self) -> tuple[int, bool]:
        """Return the steps counted since the last start, and whether counting continues."""
        return self._ops.steps, self._ops.active

    def shutdown(self) -> None:
        """Stop, and finish writing."""
        self.stop_stacks()
        self._trace.shutdown()


def _step_name(batch: SchedulerOutput) -> str:
    return (
        f"step {batch.step}: {len(batch.request_ids)} sequences, "
        f"{batch.total_num_scheduled_tokens} tokens"
    )
