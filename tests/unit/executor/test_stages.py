"""Two pipeline stages, worker by worker: what each does when the other fails."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from quire.core.batch import SchedulerOutput
from quire.core.model_config import ModelConfig
from quire.core.options import RequestInputs
from quire.core.sampling_params import SamplingParams
from quire.executor.base import ForwardError, StepSkippedError
from quire.executor.crew import node_ends
from quire.executor.frames import Landed, Step
from quire.executor.peers import Ends, shared_bytes
from quire.executor.uniproc import UniprocExecutor
from quire.executor.worker import Worker
from quire.models.weights.shares import worker_configs, worker_grid
from quire.parallel.shared_memory import anonymous_file
from tests.unit.executor.configs import TINY, config
from tests.unit.executor.test_multiproc import next_step, prompt_step
from tests.unit.models.test_gemma4 import parsed

PROMPT = prompt_step([5, 6, 7])


@dataclasses.dataclass
class Peer:
    ends: Ends

    def agree(self, num_blocks: int, num_states: int) -> tuple[int, int]:
        return num_blocks, num_states


@contextmanager
def two_stages(model: ModelConfig, **fields: Any) -> Iterator[tuple[Worker, Worker]]:
    last = model.num_hidden_layers - 1
    whole = config(
        ops="cpu", model=model, num_threads=2, stage_layers=(1, last), num_blocks=8, **fields
    )
    memory = anonymous_file(shared_bytes(whole))
    ends = node_ends(worker_grid(whole), memory)
    shares = zip(worker_configs(whole), ends, strict=True)
    first, last = (Worker(share, Peer(end)) for share, end in shares)
    for worker in (first, last):
        worker.start()
    yield first, last
    for worker in (first, last):
        worker.shutdown()
    for descriptor in (*ends[0].all, ends[1].before):
        os.close(descriptor)


@pytest.fixture(scope="module")
def stages() -> Iterator[tuple[Worker, Worker]]:
    with two_stages(dataclasses.replace(TINY, num_hidden_layers=3)) as both:
        yield both


@pytest.fixture(scope="module")
def expected() -> list[int]:
    model = dataclasses.replace(TINY, num_hidden_layers=3)
    alone = UniprocExecutor(config(ops="cpu", model=model))
    alone.start()
    steps = [PROMPT, *(next_step(["a"], computed) for computed in (3, 4))]
    tokens = [int(alone.execute(step).sampled_token_ids[0, 0]) for step in steps]
    alone.shutdown()
    return tokens


class Steps:
    """Numbers steps, and sends the first stage the tokens of those that have landed."""

    number = 0

    def __init__(self) -> None:
        self.landed: list[Landed] = []

    def of(self, batch: SchedulerOutput, *, again: bool = False) -> Step:
        Steps.number += 1
        landed, self.landed = self.landed, []
        return Step(Steps.number, batch, landed=landed, again=again)


def run(stages: tuple[Worker, Worker], steps: Steps, batch: SchedulerOutput, **how: bool) -> int:
    """The token of a step that both stages compute."""
    step = steps.of(batch, **how)
    first, last = (worker.execute_together(step) for worker in stages)
    assert first.sampled_token_ids.tolist() == [[-1]]
    steps.landed.append(Landed(last.sampled_token_ids))
    return int(last.sampled_token_ids[0, 0])


def leave(stages: tuple[Worker, Worker], steps: Steps) -> None:
    none = np.zeros(0, dtype=np.int64)
    blocks = np.zeros((3, 0), dtype=np.int64)
    step = steps.of(SchedulerOutput(9, [], none, none, blocks, [], ["a"], 0))
    for worker in stages:
        worker.execute_together(step)
        assert len(worker._runner.states) == 0


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("when", [0, 1])
def test_a_step_that_fails_in_one_stage_is_computed_again(
    failing: int,
    when: int,
    stages: tuple[Worker, Worker],
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Be it a prompt's, or a later one; what came behind it is as if it had not been."""
    steps, batches = Steps(), [PROMPT, next_step(["a"], 3), next_step(["a"], 4)]
    tokens = [run(stages, steps, batch) for batch in batches[:when]]
    broken = stages[failing]._runner
    with monkeypatch.context() as patch:
        patch.setattr(broken.model, "forward", lambda *_: 1 // 0)
        step = steps.of(batches[when])
        for number, worker in enumerate(stages):
            if number < failing:
                worker.execute_together(step)
                continue
            with pytest.raises(ForwardError) as error:
                worker.execute_together(step)
            known = ZeroDivisionError if number == failing else Exception
            assert isinstance(error.value.__cause__, known)
    other = prompt_step([8, 9])
    other.new_sequences[0] = dataclasses.replace(other.new_sequences[0], request_id="b")
    other.request_ids[:] = ["b"]
    behind = steps.of(other)
    for number, worker in enumerate(stages):
        if number < failing:
            worker.execute_together(behind)
            continue
        with pytest.raises(StepSkippedError):
            worker.execute_together(behind)
    tokens.append(run(stages, steps, batches[when], again=True))
    tokens += [run(stages, steps, batch) for batch in batches[when + 1 :]]
    assert tokens == expected
    leave(stages, steps)


def test_a_row_that_cannot_be_sampled_fails_alone(
    stages: tuple[Worker, Worker], expected: list[int]
) -> None:
    steps, bad = Steps(), prompt_step([5, 6, 7], SamplingParams(min_tokens=2))
    inputs = RequestInputs(eos_token_ids=(10**6,))
    bad.new_sequences[0] = dataclasses.replace(bad.new_sequences[0], inputs=inputs)
    assert run(stages, steps, bad) == -1
    leave(stages, steps)
    assert run(stages, steps, PROMPT) == expected[0]
    leave(stages, steps)


@pytest.mark.parametrize("eager", [False, True])
def test_layers_own_embeddings_go_with_the_rows(*, eager: bool) -> None:
    """And layers that share keys and values are on one stage (Gemma 4)."""
    model = dataclasses.replace(parsed(), layer_factors=False)  # random ones leave no numbers
    prompt = prompt_step([5, 6, 7], SamplingParams(temperature=0.0, logprobs=4))
    batches = [prompt, *(next_step(["a"], computed) for computed in (3, 4))]
    alone = UniprocExecutor(config(ops="cpu", model=model))
    alone.start()
    with two_stages(model, enforce_eager=eager) as (first, last):
        steps = Steps()
        for batch in batches:
            step = steps.of(batch)
            first.execute_together(step)
            found = last.execute_together(step)
            steps.landed.append(Landed(found.sampled_token_ids))
            assert found.logprobs == alone.execute(batch).logprobs != {}
    alone.shutdown()
