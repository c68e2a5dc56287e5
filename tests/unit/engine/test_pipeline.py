"""Async scheduling: a step is scheduled, and told of, while another is computed."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import pytest

from quire.core.batch import ModelOutput, SchedulerOutput, token_columns
from quire.core.messages import StepOutputs
from quire.core.request import FinishReason
from quire.engine.core import EngineCore
from quire.executor.base import Pending
from quire.executor.uniproc import UniprocExecutor
from quire.simulate.clock import VirtualClock
from quire.simulate.executor import ModelledExecutor, ModelledStep, modelled_tokens
from tests.unit.engine.fakes import engine_config
from tests.unit.engine.test_core import VOCAB, Steps, ask, finish, make, tokens

Line = list[tuple[str, int]]


class RecordingExecutor(ModelledExecutor):
    """Notes when a step is submitted, and when its result is asked for."""

    line: Line

    def submit(self, batch: SchedulerOutput) -> Pending:
        self.line.append(("submit", batch.step))
        step = super().submit(batch)
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


def test_a_failed_step_spares_who_comes_behind_it() -> None:
    """b is scheduled before the failure of a's step is known."""
    core = overlapped(steps=Steps(2))
    core.add(ask("a", max_tokens=9))
    core.step()
    core.add(ask("b", max_tokens=9))
    told = finish(core)
    assert told["a"][-1].finish_reason is FinishReason.ERROR
    assert told["b"][-1].finish_reason is FinishReason.LENGTH
    assert tokens(told["b"]) == modelled_tokens([1] * 10, 9, VOCAB)
    core.add(ask("c"))
    assert tokens(finish(core)["c"]) == modelled_tokens([1] * 10, 3, VOCAB)
    core.scheduler.check_integrity()


def test_an_abort_in_flight_leaves_nothing_behind() -> None:
    core = overlapped()
    core.add(ask("a", length=40, max_tokens=50))
    core.add(ask("b", length=40, max_tokens=50))
    core.step()
    core.abort(["a"])
    step = core.step()
    assert step is not None
    assert [output.request_id for output in step.each()] == ["b"]
    core.abort(["b"])
    assert core.has_work()  # the step in flight
    finish(core)
    assert not core.has_work()
    assert core.scheduler.kv.pool.num_used == 0


class SlowWorker:
    """Computes a step when it is let to."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.steps: list[int] = []
        self.stopped = False

    def start(self) -> None: ...

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        assert self.go.acquire(timeout=30)
        assert not self.stopped
        self.steps.append(batch.step)
        return ModelOutput(token_columns([]))

    def shutdown(self) -> None:
        self.stopped = True


def test_steps_are_computed_in_order_and_shutdown_waits_for_them() -> None:
    before = sys.getswitchinterval()
    executor = UniprocExecutor(replace(engine_config(), async_scheduling=True))
    executor._worker = worker = SlowWorker()  # type: ignore[assignment]
    executor.start()
    assert sys.getswitchinterval() < before
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
    assert sys.getswitchinterval() == before
