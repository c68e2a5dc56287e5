"""Async scheduling: a step is scheduled, and told of, while another is computed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from quire.core.batch import ModelOutput, SchedulerOutput, token_columns
from quire.core.messages import StepOutputs
from quire.core.request import FinishReason
from quire.engine.core import EngineCore
from quire.executor.base import Pending, StepSkippedError
from quire.executor.queued import QueueingExecutor
from quire.executor.uniproc import UniprocExecutor
from quire.simulate.clock import VirtualClock
from tests.simulation.executor import ModelledExecutor, ModelledStep, modelled_tokens
from tests.unit.engine.fakes import engine_config
from tests.unit.engine.test_core import VOCAB, Poison, Steps, ask, finish, make, tokens

Line = list[tuple[str, int]]


class RecordingExecutor(ModelledExecutor):
    """Notes when a step is submitted, and when its result is asked for."""

    line: Line

    def submit(self, batch: SchedulerOutput, ahead: Pending | None = None) -> Pending:
        self.line.append(("submit", batch.step))
        step = super().submit(batch, ahead)
        assert isinstance(step, ModelledStep)
        return RecordedStep(self.line, batch.step, step)


class RecordedStep:
    def __init__(self, line: Line, number: int, step: ModelledStep) -> None:
        self._line, self._number, self._step = line, number, step

    def result(self) -> ModelOutput:
        self._line.append(("result", self._number))
        return self._step.result()


def recorded(num_steps: int = 1) -> tuple[EngineCore, Line]:
    """An engine core, and what it does, in order: schedule, submit, result, told."""
    clock = VirtualClock()
    executor = RecordingExecutor(num_blocks=20, block_size=16, vocab_size=VOCAB, clock=clock)
    config = replace(
        engine_config(), async_scheduling=True, block_size=16, num_scheduler_steps=num_steps
    )
    core = EngineCore(config, executor, clock)
    line: Line = []
    executor.line = line
    schedule, update = core.scheduler.schedule, core.scheduler.update

    def noting_schedule(now: float, num_steps: int = 1) -> SchedulerOutput:
        batch = schedule(now, num_steps)
        line.append(("schedule", batch.step))
        return batch

    def noting_update(step: SchedulerOutput, result: ModelOutput, now: float) -> StepOutputs:
        line.append(("told", step.step))
        return update(step, result, now)

    core.scheduler.schedule = noting_schedule  # type: ignore[method-assign]
    core.scheduler.update = noting_update  # type: ignore[method-assign]
    return core, line


@pytest.mark.parametrize("num_steps", [1, 3])
def test_each_step_is_scheduled_while_the_one_ahead_runs(num_steps: int) -> None:
    core, line = recorded(num_steps)
    core.add(ask("a", max_tokens=20))
    core.add(ask("b", max_tokens=20))
    told = finish(core)
    assert tokens(told["a"]) == tokens(told["b"]) == modelled_tokens([1] * 10, 20, VOCAB)
    at = {event: index for index, event in enumerate(line)}
    last = max(step for _, step in line)
    assert last >= 20 // num_steps
    for step in range(1, last):
        ahead = at["submit", step], at["schedule", step + 1], at["submit", step + 1]
        assert ahead == tuple(sorted(ahead))
        assert ahead[-1] < at["result", step]
        if step > 1:  # the outputs of the one before are handled while this one runs
            assert at["submit", step] < at["told", step - 1] < at["result", step]


def overlapped(num_blocks: int = 8, steps: Steps | None = None) -> EngineCore:
    core = make(num_blocks, steps)
    core.config = replace(core.config, async_scheduling=True)
    return core


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_step_that_fails_once_is_computed_again_with_those_behind_it(failing: int) -> None:
    """b is scheduled before the failure of a's step is known; nobody notices anything."""
    core = overlapped(16, Steps(failing))
    core.add(ask("a", length=20, max_tokens=9))
    core.add(ask("c", length=70, max_tokens=4))  # its prompt takes two steps
    core._begin()
    core.add(ask("b", max_tokens=9))
    told = finish(core)
    assert tokens(told["a"]) == modelled_tokens([1] * 20, 9, VOCAB)
    assert tokens(told["b"]) == modelled_tokens([1] * 10, 9, VOCAB)
    assert tokens(told["c"]) == modelled_tokens([1] * 70, 4, VOCAB)
    assert core.scheduler.kv.pool.num_used == 0


@pytest.mark.parametrize("poison", ["a", "b", "c"])
def test_with_a_step_behind_it_only_the_offender_fails(poison: str) -> None:
    """c shares a's prefix, and was scheduled behind the step that fails."""
    core = overlapped(16, Poison(poison))
    core.add(ask("a", length=40, max_tokens=9))
    core.add(ask("b", length=10, max_tokens=9))
    core._begin()
    core.add(ask("c", length=50, max_tokens=9))
    told = finish(core)
    for name, length in (("a", 40), ("b", 10), ("c", 50)):
        if name == poison:
            assert told[name][-1].finish_reason is FinishReason.ERROR
        else:
            assert tokens(told[name]) == modelled_tokens([1] * length, 9, VOCAB)
    core.scheduler.check_integrity()
    assert core.scheduler.kv.pool.num_used == 0


def test_the_offender_may_be_gone_when_its_step_is_found_to_have_failed() -> None:
    """Nobody finds the blocks that it was to write."""
    core = overlapped(16, Steps(1))
    core.add(ask("a", length=40, max_tokens=9))
    core._begin()
    core.abort(["a"])
    core.add(ask("b", length=40, max_tokens=9))
    assert tokens(finish(core)["b"]) == modelled_tokens([1] * 40, 9, VOCAB)


def test_an_abort_in_flight_leaves_nothing_behind() -> None:
    core = overlapped()
    core.add(ask("a", length=40, max_tokens=50))
    core.add(ask("b", length=40, max_tokens=50))
    core.step()
    core.abort(["a"])
    step = core.step()
    assert [output.request_id for output in step.each()] == ["b"]
    core.abort(["b"])
    assert core.has_work()  # the step in flight
    finish(core)
    assert not core.has_work()
    assert core.scheduler.kv.pool.num_used == 0


class SlowWorker:
    """Computes a step when it is let to; number 7 fails."""

    num_blocks, states, lower_tiers, phases, facts = 0, None, (), None, None

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.steps: list[int] = []
        self.stopped = False

    def start(self) -> None: ...

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        assert self.go.acquire(timeout=30)
        assert not self.stopped
        self.steps.append(batch.step)
        if batch.step == 7:
            raise OSError("broken")
        return ModelOutput(token_columns([]))

    def shutdown(self) -> None:
        self.stopped = True


@pytest.fixture
def switch_seconds() -> Iterator[float]:
    """Python's own switch interval, whatever an engine of another test has left in this process."""
    found = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield sys.getswitchinterval()
    sys.setswitchinterval(found)


def test_steps_are_computed_in_order_and_shutdown_waits_for_them(switch_seconds: float) -> None:
    executor = UniprocExecutor(replace(engine_config(), async_scheduling=True))
    executor._worker = worker = SlowWorker()  # type: ignore[assignment]
    executor.start()
    assert sys.getswitchinterval() < switch_seconds
    empty = token_columns([])
    batches = [SchedulerOutput(i, [], empty, empty, empty, [], [], 0) for i in range(3)]
    steps = [executor.submit(batch) for batch in batches]
    worker.go.release()
    steps[0].result()
    assert worker.steps == [0]
    stopping = threading.Thread(target=executor.shutdown)
    stopping.start()
    worker.go.release(2)
    stopping.join(timeout=30)
    assert worker.steps == [0, 1, 2]
    assert worker.stopped
    assert sys.getswitchinterval() == switch_seconds


def test_a_step_behind_one_that_failed_is_skipped() -> None:
    executor = UniprocExecutor(replace(engine_config(), async_scheduling=True))
    executor._worker = worker = SlowWorker()  # type: ignore[assignment]
    executor.start()
    empty = token_columns([])
    batches = [SchedulerOutput(i, [], empty, empty, empty, [], [], 0) for i in (7, 8, 9)]
    worker.go.release(3)
    failing = executor.submit(batches[0])
    behind = executor.submit(batches[1], failing)
    with pytest.raises(OSError, match="broken"):
        failing.result()
    with pytest.raises(StepSkippedError):
        behind.result()
    executor.submit(batches[2]).result()
    executor.shutdown()
    assert worker.steps == [7, 9]


class QueuedWorker:
    """Leaves outputs unread, or reads them at once; some steps fail."""

    def __init__(self, knows: set[int], fails: set[int]) -> None:
        self.knows, self.fails = knows, fails
        self.told: list[str] = []
        self.num_unread = 0

    def queue(self, batch: SchedulerOutput) -> ModelOutput:
        self.told.append(f"queue {batch.step}")
        if batch.step in self.fails:
            raise OSError("broken")
        self.num_unread += batch.step not in self.knows
        return ModelOutput(token_columns([[batch.step]]))

    def read(self, output: ModelOutput) -> ModelOutput:
        step = int(output.sampled_token_ids[0, 0])
        self.told.append(f"read {step}")
        self.num_unread -= step not in self.knows
        return output


def test_an_accelerators_steps_are_queued_by_the_caller() -> None:
    executor = QueueingExecutor(replace(engine_config(), device="cuda", async_scheduling=True))
    executor._worker = worker = QueuedWorker({3}, {4})  # type: ignore[assignment]
    empty = token_columns([])
    batches = [SchedulerOutput(i, [], empty, empty, empty, [], [], 0) for i in range(6)]
    first = executor.submit(batches[1])
    assert executor.most_in_flight(2) == 2
    second = executor.submit(batches[2], first)
    assert first.result().sampled_token_ids.tolist() == [[1]]
    assert executor.most_in_flight(2) == 2
    second.result()
    assert executor.most_in_flight(2) == 1
    known = executor.submit(batches[3], second)
    assert executor.most_in_flight(2) == 1  # its tokens are here: the core lands it first
    known.result()
    failing = executor.submit(batches[4], known)
    behind = executor.submit(batches[5], failing)
    with pytest.raises(OSError, match="broken"):
        failing.result()
    with pytest.raises(StepSkippedError):
        behind.result()
    assert worker.told == [
        "queue 1", "queue 2", "read 1", "read 2", "queue 3", "read 3", "queue 4",
    ]  # fmt: skip


@pytest.mark.parametrize("idle", [False, True])
def test_no_step_begins_before_one_that_has_ended_lands(
    idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = overlapped(16)
    most = 1 if idle else 2
    monkeypatch.setattr(type(core.executor), "most_in_flight", lambda self, wanted: most)
    core.add(ask("a", length=10, max_tokens=5))
    core.step()
    assert len(core._in_flight) == (0 if idle else 1)
