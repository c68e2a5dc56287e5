"""The worker: start, facts, phases, steps; on dummy weights."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
import torch

from quire.core.batch import NewSequence, SchedulerOutput, block_columns
from quire.core.errors import OutOfMemoryError
from quire.core.sampling_params import SamplingParams
from quire.executor.uniproc import UniprocExecutor
from quire.executor.worker import Worker
from quire.frontend.client.in_process import InProcessClient
from quire.ops.native.gemm import PackedLinear
from tests.unit.executor.configs import TINY, config


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """A worker sets torch's threads for its process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def one_step(count: int = 5) -> SchedulerOutput:
    new = NewSequence("a", list(range(count)), count, SamplingParams(temperature=0.0))
    blocks = block_columns([(0, 0, [3])])
    return SchedulerOutput(1, ["a"], np.array([count]), np.array([0]), blocks, [new], [], count)


def test_phases_add_up_and_facts_are_plain() -> None:
    executor = UniprocExecutor(config())
    start = time.perf_counter()
    executor.start()
    wall = time.perf_counter() - start
    assert list(executor.phases) == ["import_ops", "load_weights", "allocate_kv", "warm_up"]
    assert 0 < sum(executor.phases.values()) <= wall
    facts = executor.facts
    assert facts["kv_bytes_per_token"] == 256
    assert facts["num_blocks"] == executor.num_blocks == 40
    assert facts["kv_cache_bytes"] == 40 * 16 * 256
    assert facts["device"] == "cpu"
    assert facts["dtype"] == "float32"
    assert isinstance(facts["ops"], dict)
    assert facts["ops"]["linear"] == "reference"
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(facts)) == facts
    assert torch.get_num_threads() == config().num_threads


def held_bytes(thing: object, seen: set[int]) -> int:
    """Bytes of all weights that can be reached from `thing`, each counted once."""
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, (torch.Tensor, np.ndarray)):
        return thing.nbytes
    if isinstance(thing, PackedLinear):
        return thing.nbytes
    if isinstance(thing, list | tuple):
        return sum(held_bytes(part, seen) for part in thing)
    names = {*getattr(thing, "__slots__", ()), *getattr(thing, "__dict__", {})}
    return sum(held_bytes(getattr(thing, name), seen) for name in names - {"cos_sin", "rotations"})


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("ops", "dtype", "quantization"),
    [
        ("reference", "float32", None),
        ("auto", "float32", None),
        ("auto", "bfloat16", None),
        ("auto", "bfloat16", "int8"),
    ],
)
def test_planned_weights_are_the_decoders(
    ops: str, dtype: str, quantization: str | None, tied: bool
) -> None:
    """For a shape that needs no padding."""
    model = dataclasses.replace(
        TINY, hidden_size=64, intermediate_size=128, head_dim=16, tie_word_embeddings=tied
    )
    worker = Worker(config(model=model, ops=ops, dtype=dtype, quantization=quantization))
    worker.start()
    assert worker.facts["weight_bytes"] == held_bytes(worker._runner.model.decoder, set())


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_native_ops_are_replayed_unless_eager(enforce_eager: bool) -> None:
    worker = Worker(config(ops="cpu", enforce_eager=enforce_eager))
    worker.start()
    model = worker._runner.model
    assert worker.facts["model"] == model.description
    assert model.description.startswith("eager" if enforce_eager else "plan: ")
    assert "in torch" not in model.description
    assert (model.arena_bytes > 0) is not enforce_eager
    assert model.arena_bytes <= worker.facts["activation_bytes"]  # type: ignore[operator]


def test_warm_up_leaves_no_sequence() -> None:
    worker = Worker(config())
    worker.start()
    assert len(worker._runner.states) == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_step_yields_a_token(dtype: str) -> None:
    executor = UniprocExecutor(config(dtype=dtype))
    executor.start()
    (tokens,) = executor.execute(one_step()).sampled_token_ids
    assert len(tokens) == 1
    assert 0 <= tokens[0] < 64
    executor.shutdown()
    with pytest.raises(RuntimeError, match="not started"):
        executor.execute(one_step())


@pytest.mark.parametrize("ops", ["reference", "auto"])
def test_an_int8_kv_cache(ops: str) -> None:
    executor = UniprocExecutor(config(kv_cache_dtype="int8", ops=ops))
    executor.start()
    facts = executor.facts
    assert facts["kv_cache_dtype"] == "int8"
    # 2 · 2 layers · 2 heads · (8 + 2 of the scale)
    assert facts["kv_bytes_per_token"] == 80
    assert facts["kv_cache_bytes"] == 40 * 16 * 80
    assert len(executor.execute(one_step()).sampled_token_ids[0]) == 1


@pytest.mark.parametrize("ops", ["reference", "auto"])
@pytest.mark.parametrize("scales", [False, True])
def test_a_kv_cache_of_8_bit_floats(ops: str, scales: bool) -> None:
    executor = UniprocExecutor(
        config(kv_cache_dtype="fp8_e5m2", calculate_kv_scales=scales, ops=ops)
    )
    executor.start()
    assert executor.facts["kv_bytes_per_token"] == (80 if scales else 64)
    assert len(executor.execute(one_step()).sampled_token_ids[0]) == 1


def test_too_little_memory_is_known_before_the_weights_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load_model(*args: object) -> None:
        raise AssertionError("the weights were read")

    monkeypatch.setattr("quire.models.weights.loader.load_model", load_model)
    with pytest.raises(OutOfMemoryError, match="one sequence of 128 tokens"):
        Worker(config(memory_budget_bytes=2**20)).start()


def test_a_cache_the_system_refuses_is_an_out_of_memory_error() -> None:
    with pytest.raises(OutOfMemoryError, match="refuses"):
        Worker(config(num_blocks=2**50)).start()


@pytest.mark.parametrize("limits", [{"max_tokens": 4}, {"max_model_len": 2}, {"max_num_seqs": 1}])
def test_warm_up_keeps_to_the_limits(limits: dict[str, int]) -> None:
    Worker(config(**limits)).start()


async def test_weights_are_read_once_from_the_configuration_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[object] = []
    monkeypatch.setattr("quire.executor.worker.open_cache", lambda *args: opened.append(args))
    client = InProcessClient()
    client.configure(config())
    assert len(opened) == 1
    await client.start(config(), print, print)
    assert len(opened) == 1
    client.shutdown()


def test_a_caller_that_waits_for_a_token_waits_for_no_other_step() -> None:
    early, late = Worker(config()), Worker(config())
    early.begin()
    early.start()
    late.start()
    assert list(early.phases) == ["import_ops", "load_weights", "allocate_kv"]
    tokens = [worker.execute(one_step()).sampled_token_ids for worker in (early, late)]
    assert tokens[0] == tokens[1]
