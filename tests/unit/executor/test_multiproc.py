"""The executor of several processes: the tokens of one, and what it does when ranks differ."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from array import array
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from quire.core.batch import (
    BlockCopies,
    BlockLoad,
    BlockSave,
    BlockStore,
    ModelOutput,
    NewSequence,
    SchedulerOutput,
    block_columns,
)
from quire.core.config import ProfilerConfig
from quire.core.errors import EngineDeadError, OutOfMemoryError
from quire.core.lora import LoRAConfig
from quire.core.sampling_params import SamplingParams
from quire.executor import team
from quire.executor.base import Executor, ForwardError, StepSkippedError, error_text
from quire.executor.choice import make_executor
from quire.executor.crew import rank_cpus
from quire.executor.frames import FromWorker, Landed, Outcome, Step, ToWorker, decoder, encode
from quire.executor.multiproc import MultiprocExecutor, check_agreement
from quire.executor.uniproc import UniprocExecutor
from quire.models.registry import model_config
from quire.system.hardware import core_cpus, detect
from tests.e2e.tiny_adapter import write_tiny_adapter
from tests.e2e.tiny_model import CONFIG
from tests.unit.executor.configs import TINY, config

two_cores = pytest.mark.skipif(detect().cores < 2, reason="every rank needs a core of its own")
GREEDY = SamplingParams(temperature=0.0)
TP2 = {"tensor_parallel_size": 2, "ops": "cpu", "num_threads": 2}


def ranks() -> list[psutil.Process]:
    """This process's, whatever other children the tests before have left it."""
    found = psutil.Process().children(recursive=True)
    return [p for p in found if "quire.executor.rank" in p.cmdline()]


def prompt_step(tokens: list[int], params: SamplingParams = GREEDY) -> SchedulerOutput:
    new = NewSequence("a", tokens, len(tokens), params)
    blocks = block_columns([(0, 0, [3])])
    count = len(tokens)
    return SchedulerOutput(1, ["a"], np.array([count]), np.array([0]), blocks, [new], [], count)


def next_step(names: list[str], computed: int, **changes: object) -> SchedulerOutput:
    step = SchedulerOutput(
        2, names, np.array([1]), np.array([computed]), block_columns([]), [], [], 1
    )
    return msgspec.structs.replace(step, **changes)


def tokens_of(executor: Executor, *, at_once: int = 2) -> list[int]:
    """A prompt's continuation: a step, three more, and some at once; then the sequence goes."""
    batch = prompt_step([5, 6, 7], SamplingParams(temperature=1.0, seed=9))
    tokens = executor.execute(batch).sampled_token_ids.flatten().tolist()
    for computed in (3, 4, 5):
        output = executor.execute(next_step(batch.request_ids, computed))
        tokens += output.sampled_token_ids.flatten().tolist()
    most = np.array([at_once]) if at_once > 1 else None
    last = executor.execute(next_step(batch.request_ids, 6, max_new_tokens=most))
    tokens += last.sampled_token_ids.flatten().tolist()
    nothing = np.zeros(0, dtype=np.int64)
    executor.execute(SchedulerOutput(3, [], nothing, nothing, block_columns([]), [], ["a"], 0))
    return tokens


def profiled(executor: Executor, *, at_once: int = 2) -> dict[str, Any]:
    """Some steps."""
    executor.call("start_op_profile", [])
    tokens_of(executor, at_once=at_once)
    profile: dict[str, Any] = executor.call("stop_op_profile", [])
    return profile


def flops_of(executor: Executor) -> int:
    """Of the layers' products in some steps."""
    return sum(op["flops"] for op in profiled(executor)["ops"] if op["name"] == "linear")


@two_cores
def test_ranks_in_processes() -> None:
    """The tokens of one process; after a step that failed everywhere, too; the facts are sums; and
    at the end nothing is left."""
    alone = UniprocExecutor(config(ops="cpu"))
    alone.start()
    affinity = os.sched_getaffinity(0)
    executor = make_executor(config(**TP2))
    assert isinstance(executor, MultiprocExecutor)
    executor.start()
    beside = ranks()
    assert len(beside) == 1
    expected = tokens_of(alone)
    assert tokens_of(executor) == expected
    with pytest.raises(ForwardError) as failure:
        executor.execute(prompt_step([5, 64]))
    assert "token id 64" in str(failure.value.__cause__)
    assert tokens_of(executor) == expected
    assert flops_of(executor) == flops_of(alone)
    waits = profiled(executor)["rank_waits"]
    assert len(waits) == 2
    assert max(waits) > 0.0
    assert profiled(alone)["rank_waits"] == []
    assert executor.facts["tensor_parallel_size"] == 2
    for name in ("kv_bytes_per_token", "kv_cache_bytes", "num_blocks"):
        assert executor.facts[name] == alone.facts[name]
    alone.shutdown()
    executor.shutdown()
    assert psutil.wait_procs(beside, timeout=60)[1] == []
    assert os.sched_getaffinity(0) == affinity


@two_cores
def test_stages_in_processes() -> None:
    """The tokens of one process; also after a step that fails, with the one behind it."""
    model = dataclasses.replace(TINY, num_hidden_layers=3)
    alone = UniprocExecutor(config(ops="cpu", model=model))
    alone.start()
    executor = make_executor(config(ops="cpu", model=model, num_threads=2, stage_layers=(2, 1)))
    executor.start()
    expected = tokens_of(alone, at_once=1)
    assert tokens_of(executor, at_once=1) == expected
    failed = executor.submit(prompt_step([5, 64]))
    behind = executor.submit(prompt_step([5, 6]), failed)
    with pytest.raises(ForwardError) as failure:
        failed.result()
    assert "token id 64" in error_text(failure.value)
    with pytest.raises(StepSkippedError):
        behind.result()
    assert tokens_of(executor, at_once=1) == expected
    for name in ("kv_bytes_per_token", "weight_bytes"):
        assert executor.facts[name] == alone.facts[name]
    assert executor.facts["pipeline_parallel_size"] == 2
    whole, found = (profiled(each, at_once=1) for each in (alone, executor))
    products = ([op for op in each["ops"] if op["name"] == "linear"] for each in (found, whole))
    for mine, other in zip(*products, strict=True):
        assert all(mine[name] == other[name] for name in ("module", "calls", "nbytes", "flops"))
    inside = found["model_seconds"] + found["prepare_seconds"] + found["sample_seconds"]
    assert sum(op["seconds"] for op in found["ops"]) < found["model_seconds"]
    assert (found["steps"], found["rank_waits"]) == (whole["steps"], [])
    assert inside <= found["wall_seconds"]
    alone.shutdown()
    executor.shutdown()


@two_cores
def test_each_stage_writes_a_trace(tmp_path: Path) -> None:
    model = dataclasses.replace(TINY, num_hidden_layers=2)
    profiler = ProfilerConfig(torch_profiler_dir=str(tmp_path))
    shape = {"stage_layers": (1, 1), "num_threads": 2, "profiler": profiler}
    executor = make_executor(config(ops="cpu", model=model, **shape))
    executor.start()
    assert executor.call("start_profile", []) is True
    tokens_of(executor, at_once=1)
    executor.call("stop_profile", [])
    end = time.monotonic() + 60.0
    while (status := executor.call("profile_status", []))["writing"]:
        assert time.monotonic() < end
        time.sleep(0.05)
    executor.shutdown()
    assert len(set(status["files"])) == 2
    assert {file.name for file in tmp_path.glob("quire_*")} == set(status["files"])
    assert not status["failures"]


@two_cores
@pytest.mark.slow
def test_four_stages_and_two_stages_of_two_ranks() -> None:
    model = dataclasses.replace(TINY, num_hidden_layers=4)
    alone = UniprocExecutor(config(ops="cpu", model=model))
    alone.start()
    for shape in ({"stage_layers": (1,) * 4}, {"stage_layers": (1, 3), "tensor_parallel_size": 2}):
        executor = make_executor(config(ops="cpu", model=model, num_threads=4, **shape))
        executor.start()
        assert tokens_of(executor, at_once=1) == tokens_of(alone, at_once=1)
        executor.shutdown()
    alone.shutdown()


def added(executor: Executor, name: str, number: int, folder: Path) -> Any:
    """The answer to an `add_lora`, once there is one."""
    while (answer := executor.call("add_lora", [name, number, str(folder)])) is None:
        time.sleep(0.01)
    return answer


@two_cores
@pytest.mark.parametrize("overlap", [False, True])
def test_adapters_are_on_all_ranks(overlap: bool, tmp_path: Path) -> None:
    """Loaded, or refused, and unloaded, whichever rank meets with it."""
    model = model_config(CONFIG)
    lora = LoRAConfig(1, 8, 1)
    executor = MultiprocExecutor(config(model=model, lora=lora, async_scheduling=overlap, **TP2))
    executor.start()
    for number in (1, 2):
        write_tiny_adapter(tmp_path / str(number), number)
        assert "digest" in added(executor, "a", number, tmp_path / str(number))
    assert executor.call("list_loras", []) == {2: 0}  # which has taken the other one's place
    executor.call("remove_lora", [2])
    assert executor.call("list_loras", []) == {}
    write_tiny_adapter(tmp_path / "bad", 3, use_dora=True)
    assert "use_dora" in added(executor, "a", 3, tmp_path / "bad")["error"]
    assert executor._call_others("list_loras", []) == [{}]
    # The ranks find different files.
    executor._call_others("load_lora", ["a", 4, str(tmp_path / "1")])
    answer = added(executor, "a", 4, tmp_path / "2")
    assert answer == {"error": "The files changed while they were read."}
    assert executor.call("list_loras", []) == {}
    assert executor._call_others("list_loras", []) == [{}]
    executor.shutdown()


@two_cores
def test_a_rank_that_is_killed_is_noticed() -> None:
    lost: list[int] = []
    executor = MultiprocExecutor(config(**TP2), lost.append)
    executor.start()
    (rank,) = ranks()
    rank.kill()
    with pytest.raises(EngineDeadError, match="group ended"):
        tokens_of(executor)
    assert lost == [-signal.SIGKILL]  # called before the error was raised
    executor.shutdown()


@two_cores
@pytest.mark.slow
def test_a_stage_that_stops_is_named_and_one_that_is_killed_is_noticed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lost: list[int] = []
    shape = {"stage_layers": (1, 1), "ops": "cpu", "num_threads": 2, "step_timeout": 0.4}
    executor = MultiprocExecutor(config(**shape), lost.append)
    executor.start()
    (stage,) = ranks()
    stage.suspend()
    step = executor.submit(prompt_step([5, 6, 7]))
    waking = threading.Timer(1.0, stage.resume)
    waking.start()
    step.result()
    waking.join()
    assert "stage 1 has not answered for 0.2 s" in caplog.text
    stage.kill()
    with pytest.raises(EngineDeadError, match="group ended"):
        executor.execute(next_step(["a"], 3))
    assert lost == [-signal.SIGKILL]
    executor.shutdown()


@two_cores
def test_a_worker_that_does_not_load_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "LEAST_LOAD_SECONDS", 0.0)
    monkeypatch.setattr(team, "LOAD_TIMES", 0.0)
    executor = MultiprocExecutor(config(stage_layers=(1, 1), ops="cpu", num_threads=2))
    with pytest.raises(EngineDeadError, match="stage 1 has not loaded its weights within 0 s"):
        executor.start()


@two_cores
def test_what_does_not_fit_is_said_as_by_one_process() -> None:
    executor = MultiprocExecutor(config(memory_budget_bytes=2**20, **TP2))
    with pytest.raises(OutOfMemoryError, match="cannot hold one sequence"):
        executor.start()
    assert ranks() == []


def test_steps_survive_their_way() -> None:
    batch = msgspec.structs.replace(
        prompt_step([1, 2, 3], SamplingParams(temperature=0.5, seed=4, stop=["x"])),
        block_copies=BlockCopies(
            [b"d"], [BlockSave(1, b"s")], [BlockStore(1, 2, b"k")], [BlockLoad(3, 4, b"l")]
        ),
        removed=["b"],
    )
    batch.new_sequences[0] = dataclasses.replace(
        batch.new_sequences[0], token_ids=array("i", [1, 2, 3])
    )
    landed = Landed(np.array([[5], [-1]]), np.array([[6, 7], [-1, -1]]))
    sent = decoder(ToWorker).decode(encode(Step(7, batch, landed=[landed])))
    for column, same in zip(sent.landed[0], landed, strict=True):
        np.testing.assert_array_equal(column, same)
    got = sent.batch
    assert got.request_ids == ["a"]
    assert got.new_blocks.shape == (3, 1)
    for name in ("num_scheduled_tokens", "num_computed_tokens", "new_blocks"):
        np.testing.assert_array_equal(getattr(got, name), getattr(batch, name))
    assert list(got.new_sequences[0].token_ids) == [1, 2, 3]
    plain = dict.fromkeys(("num_scheduled_tokens", "num_computed_tokens", "new_blocks"))
    replace = msgspec.structs.replace
    plain["new_sequences"] = [dataclasses.replace(batch.new_sequences[0], token_ids=[1, 2, 3])]
    assert replace(got, **plain) == replace(batch, **plain)


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (Outcome(error="MemoryError: "), "failed on rank 1, but not on rank 0: MemoryError"),
        (Outcome(skipped=True), "failed on rank"),
        (Outcome.of(ModelOutput(np.array([[8]]))), "rank 1 sampled other tokens"),
        (Outcome(np.array([7]).tobytes(), pooled=1), "rank 1 has other hidden states"),
    ],
)
def test_ranks_that_differ_end_the_engine(outcome: Outcome, why: str) -> None:
    first = Outcome.of(ModelOutput(np.array([[7]])))
    check_agreement([first, first])
    with pytest.raises(EngineDeadError, match=f"do not agree: .*{why}"):
        check_agreement([first, outcome])
    with pytest.raises(EngineDeadError, match="do not agree"):
        check_agreement([outcome, first])


def test_cores_are_dealt_out() -> None:
    cores = core_cpus()
    dealt = rank_cpus(1, len(cores))
    assert sorted(dealt[0]) == sorted(cpu for core in cores for cpu in core)
    assert rank_cpus(2, len(cores)) == [[], []]  # more threads than cores
    if len(cores) >= 2:
        first, second = rank_cpus(2, len(cores) // 2)
        assert set(first).isdisjoint(second)


@pytest.mark.parametrize("wrong", [([2, 1], 2**40), ([2, 1], 2**63), ([2**64 - 1], bytes(16))])
def test_an_array_of_a_wrong_shape_is_refused(wrong: tuple[list[int], Any]) -> None:
    """And allocates nothing."""
    whole = Outcome.of(ModelOutput(np.arange(2).reshape(2, 1)), whole=True)
    frame, array = encode(whole), msgspec.msgpack.encode([[2, 1], np.arange(2).tobytes()])
    assert frame.count(array) == 1
    with pytest.raises(msgspec.ValidationError):
        decoder(FromWorker).decode(frame.replace(array, msgspec.msgpack.encode(wrong)))
