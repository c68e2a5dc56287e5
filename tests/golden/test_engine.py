"""Each architecture through the whole engine core: scheduler, KV manager, runner, sampler.

The prompt runs in chunks beside other requests, its prefix is found in the cache, and in the
smallest cache it is preempted; the greedy tokens are Transformers' all the same.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from quire.core.messages import AddRequest
from quire.core.request import pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.engine.core import EngineCore
from quire.executor.uniproc import UniprocExecutor
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import detect
from tests.golden.harness import is_planned
from tests.golden.tiny_models import FEW_KINDS, of_each_kind
from tests.golden.transformers_oracle import NUM_TOKENS, Golden


class Engine:
    """The engine core of `TINY_MODELS[name]`, answering prompts of token ids greedily."""

    def __init__(self, name: str, folder: Path, **flags: int) -> None:
        args = EngineArgs(model=str(folder), dtype="float32", ops="cpu", max_num_seqs=4, **flags)
        config = resolve(args, detect()).config
        self.core = EngineCore(config, UniprocExecutor(config))
        assert is_planned(self.core.executor.facts)
        self._ids = count()

    def answer(self, prompts: list[list[int]]) -> list[list[int]]:
        params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
        tokens: dict[str, list[int]] = {}
        for prompt in prompts:
            request_id = str(next(self._ids))
            tokens[request_id] = []
            self.core.add(AddRequest(request_id, pack_tokens(prompt), params, arrival_time=0.0))
        while step := self.core.step():
            self.core.scheduler.check_integrity()
            for output in step.each():
                tokens[output.request_id] += output.new_token_ids
        return list(tokens.values())


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("golden", of_each_kind(kinds=FEW_KINDS), indirect=True)
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_chunks_and_prefix_hits(golden: tuple[str, Path, Golden], block_size: int) -> None:
    name, folder, expected = golden
    # Enough that nothing leaves the cache: by default a sliding window gets few blocks.
    blocks = 4096 // block_size
    engine = Engine(
        name,
        folder,
        block_size=block_size,
        max_num_batched_tokens=23,
        num_gpu_blocks_override=blocks,
    )
    others = [expected.prompt[:40] + [i] * (i + 1) for i in range(2, 4)]
    assert engine.answer([*others, expected.prompt])[-1] == expected.output
    hits = engine.core.scheduler.stats().prefix_cache_hits
    assert engine.answer([expected.prompt]) == [expected.output]
    assert engine.core.scheduler.stats().prefix_cache_hits >= hits + 64


@pytest.mark.parametrize("golden", of_each_kind(kinds=FEW_KINDS), indirect=True)
def test_preemption(golden: tuple[str, Path, Golden]) -> None:
    name, folder, expected = golden
    engine = Engine(name, folder, num_gpu_blocks_override=7, max_num_batched_tokens=64)
    assert engine.answer([expected.prompt] * 2) == [expected.output] * 2
    model = engine.core.config.model
    # Blocks behind the window of all layers are freed, so that nobody has to go for them.
    freed = all(model.window(layer) for layer in range(model.num_hidden_layers))
    assert freed or engine.core.scheduler.stats().num_preemptions > 0
