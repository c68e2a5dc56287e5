"""Streams of all kinds that move to another replica: each must end as it would have, to the bit."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams
from quire.frontend.async_llm import AsyncLLM
from quire.frontend.client import supervisor
from quire.frontend.client.core_client import ProcessClient
from quire.resolve.arguments import EngineArgs
from quire.system.hardware import detect
from tests.unit.frontend.test_core_client import until

pytestmark = pytest.mark.skipif(detect().cores < 2, reason="each replica needs a core")

PATIENCE = 120.0
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "tags": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    },
    "required": ["name", "tags"],
}
KINDS: list[dict[str, Any]] = [
    {"structured_outputs": StructuredOutputsParams(json=SCHEMA)},
    {"structured_outputs": StructuredOutputsParams(regex=r"[a-z ]{20,80}\.")},
    {"presence_penalty": 1.0, "frequency_penalty": 0.7, "repetition_penalty": 1.2},
    {"n": 3, "logprobs": 2},
    {"stop": ["e", "fo"], "min_tokens": 40, "include_stop_str_in_output": True},
    {"bad_words": ["a", "it"], "logit_bias": {5: -3.0, 100: 2.0}, "min_tokens": 30},
    {"min_p": 0.05, "top_k": 7, "top_p": 0.8, "logprobs": 0, "prompt_logprobs": 1},
    {"n": 2, "top_k": 20, "ignore_eos": True},
]
SEQS, BLOCKS = 6, 100
"""Fewer rows and blocks than the requests want: some wait, and some are preempted."""


def params(draw: Random, kind: dict[str, Any]) -> SamplingParams:
    return SamplingParams(
        output_kind=RequestOutputKind.DELTA,
        temperature=draw.choice([0.0, 0.7, 1.2]),
        seed=draw.randrange(2**31),
        max_tokens=draw.randrange(60, 200),
        **kind,
    )


async def answer(
    engine: AsyncLLM,
    rank: int,
    prompt: list[int],
    wanted: SamplingParams,
    came: Callable[[int], None] = lambda _: None,
) -> dict[int, list[Any]]:
    """What a stream tells of each sequence; `came` gets the number of its new tokens."""
    found: dict[int, list[Any]] = {}
    stream = engine.generate({"prompt_token_ids": prompt}, wanted, data_parallel_rank=rank)
    async for output in stream:
        for part in output.outputs:
            told = found.setdefault(part.index, [[], "", [], None, None])
            told[0] += part.token_ids
            told[1] += part.text
            told[2] += [{k: v.logprob for k, v in each.items()} for each in part.logprobs or ()]
            if part.finish_reason:
                told[3:] = part.finish_reason, part.stop_reason
            came(len(part.token_ids))
    return found


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.slow)])
async def test_streams_that_move_end_as_they_would_have(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    monkeypatch.setattr(supervisor, "HEALTHY_SECONDS", 0.0)
    flags = {"num_threads": 2, "max_num_seqs": SEQS, "num_gpu_blocks_override": BLOCKS}
    engine = await AsyncLLM.start(EngineArgs(str(tiny_model), data_parallel_size=2, **flags))
    try:
        for number in range(rounds):
            await move_all(engine, Random(number), number % 2)
        await until(lambda: all(replica.is_ready for replica in engine._fleet.replicas))
        await engine.call("check_integrity")
        assert engine.num_unfinished == 0
    finally:
        engine.shutdown()


async def move_all(engine: AsyncLLM, draw: Random, rank: int) -> None:
    """Have one replica answer requests, kill it in the middle of them, and compare."""
    wanted = [
        ([draw.randrange(256) for _ in range(draw.randrange(5, 200))], params(draw, kind))
        for kind in KINDS
    ]
    await until(lambda: all(replica.is_ready for replica in engine._fleet.replicas))
    expected = await asyncio.gather(*[answer(engine, 1 - rank, *each) for each in wanted])
    assert await engine.reset_prefix_cache()
    before, left = engine.stats.retried, draw.randrange(300)
    client = engine._fleet.replicas[rank].client
    assert isinstance(client, ProcessClient)

    def came(count: int) -> None:
        nonlocal left
        if left < count and left >= 0:
            os.kill(client.pid, signal.SIGKILL)
        left -= count

    streams = asyncio.gather(*[answer(engine, rank, *each, came) for each in wanted])
    assert await asyncio.wait_for(streams, PATIENCE) == expected
    assert engine.stats.retried > before
