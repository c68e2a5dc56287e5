"""What a step of steady decoding allocates: little, and no more in a long context."""

from __future__ import annotations

import statistics
import tracemalloc
from typing import Any

import torch
from torch import Tensor

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.config import EngineConfig, SchedulerConfig
from quire.core.messages import AddRequest
from quire.core.request import pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.engine.core import EngineCore
from quire.executor.base import Executor
from quire.ops.interface import Ops
from quire.ops.metadata import AttentionMetadata, KVCache
from quire.ops.torch_ops.provider import TorchOps
from quire.runner.runner import ModelRunner
from tests.unit.engine.fakes import engine_config
from tests.unit.runner.fakes import MODEL

BLOCK_SIZE = 16
NUM_BLOCKS = 2048
LENGTH = 4200
NUM_SEQS = 4


class Monotone:
    """A decoder that says the same whatever it is given, without looking."""

    kv_units = ((1.0, 1.0),)

    def forward(
        self,
        ops: Ops,
        input_ids: Tensor,
        positions: Tensor,
        kv_caches: list[KVCache],
        meta: AttentionMetadata,
        rows: Tensor,
        **given: object,
    ) -> Tensor:
        return torch.zeros(len(rows), 1)

    def modules(self, kv_caches: list[KVCache]) -> dict[int, str]:
        return {}

    def compute_logits(self, ops: Ops, hidden: Tensor) -> Tensor:
        return torch.zeros(len(hidden), MODEL.vocab_size)


class RunnerExecutor(Executor):
    """The real runner, with that decoder."""

    phases = {"load": 0.0}  # noqa: RUF012
    facts = {"device": "none"}  # noqa: RUF012
    num_blocks = NUM_BLOCKS

    def __init__(self, config: EngineConfig) -> None:
        decoder: Any = Monotone()
        self._runner = ModelRunner(config, NUM_BLOCKS, decoder, TorchOps())

    def start(self) -> None: ...

    def shutdown(self) -> None: ...

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        return self._runner.execute(batch)


def peak_bytes(context: int) -> float:
    """What a step allocates at most, beside what it leaves; the median of many steps."""
    limits = SchedulerConfig(LENGTH, NUM_SEQS, 2048)
    config = engine_config(model=MODEL, block_size=BLOCK_SIZE, scheduler=limits)
    core = EngineCore(config, RunnerExecutor(config))
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    for i in range(NUM_SEQS):
        core.add(AddRequest(str(i), pack_tokens([1 + i] * context), params, arrival_time=0.0))
    while len(core.scheduler.running) < NUM_SEQS or core.scheduler.waiting:
        core.step()
    for _ in range(20):
        core.step()
    peaks = []
    tracemalloc.start()
    for _ in range(40):
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        core.step()
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
    return statistics.median(peaks)


def test_a_decode_step_allocates_as_much_in_a_long_context_as_in_a_short_one() -> None:
    short, long = peak_bytes(100), peak_bytes(4000)
    assert long <= short + 1024  # Python's integers above 256 are objects
    assert short < 16 * 1024
