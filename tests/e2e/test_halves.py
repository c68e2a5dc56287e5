"""`--prefill-replicas 1 --decode-replicas 1`: one engine's answers, whichever side is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from random import Random

import pytest

from quire import LLM, SamplingParams
from quire.core.sampling_params import RequestOutputKind
from quire.frontend.async_llm import AsyncLLM
from quire.frontend.client.core_client import ProcessClient
from quire.resolve.arguments import EngineArgs
from quire.system.hardware import detect

pytestmark = pytest.mark.skipif(detect().cores < 2, reason="each replica needs a core")

BLOCKS, SECONDS = 256, 120
LENGTHS = (300, 20, 260, 301, 129, 270)
KINDS = [{"temperature": 0.0}, {"temperature": 0.9, "seed": 3}, {"temperature": 0.9, "n": 2}]


def prompts(seed: int) -> list[list[int]]:
    draw = Random(seed)
    return [[draw.randrange(3, 250) for _ in range(length)] for length in LENGTHS]


def params(index: int) -> SamplingParams:
    kind = {"seed": 5, **KINDS[index % len(KINDS)]}
    return SamplingParams(max_tokens=12, ignore_eos=True, output_kind=FINAL, **kind)


FINAL = RequestOutputKind.FINAL_ONLY
Tokens = list[list[int]]


async def answer(engine: AsyncLLM, prompt: list[int], index: int) -> Tokens:
    stream = engine.generate({"prompt_token_ids": prompt}, params(index))
    *_, last = [output async for output in stream]
    return [list(sequence.token_ids) for sequence in last.outputs]


def kill(engine: AsyncLLM, replica: int) -> None:
    client = engine._fleet.replicas[replica].client
    assert isinstance(client, ProcessClient)
    os.kill(client.pid, signal.SIGKILL)


async def until_back(engine: AsyncLLM, kills: int) -> None:
    """Wait until each killed core has a successor."""
    for _ in range(SECONDS * 20):
        if sum(replica.num_restarts for replica in engine._fleet.replicas) == kills:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("a core did not come back")


def answers_of_one(model: Path, rounds: list[Tokens]) -> list[list[Tokens]]:
    """Return what an engine of one replica answers."""
    with LLM(str(model), num_gpu_blocks_override=BLOCKS) as llm:
        return [
            [
                [list(sequence.token_ids) for sequence in found.outputs]
                for index, prompt in enumerate(asked)
                for found in llm.generate({"prompt_token_ids": prompt}, params(index))
            ]
            for asked in rounds
        ]


def halved(model: Path) -> EngineArgs:
    return EngineArgs(
        str(model), num_gpu_blocks_override=BLOCKS, prefill_replicas=1, decode_replicas=1
    )


async def test_answers_are_those_of_one_engine(tiny_model: Path) -> None:
    rounds = [prompts(seed) for seed in range(3)]
    expected = answers_of_one(tiny_model, rounds)
    engine = await AsyncLLM.start(halved(tiny_model))
    try:
        for kills, (asked, wanted) in enumerate(zip(rounds, expected, strict=True)):
            victim = (None, 0, 1)[kills]
            tasks = [asyncio.create_task(answer(engine, p, i)) for i, p in enumerate(asked)]
            if victim is not None:
                await asyncio.sleep(0.01)
                kill(engine, victim)
            assert await asyncio.wait_for(asyncio.gather(*tasks), SECONDS) == wanted
            if victim is None:
                check_shares(engine)
            await until_back(engine, kills)
            assert await engine.call("check_integrity") is None
            await check_nothing_is_lent(engine)
        await check_abort(engine)
    finally:
        engine.shutdown()


async def check_nothing_is_lent(engine: AsyncLLM) -> None:
    """All loans end, and the cores hold no block."""
    halves = engine._fleet._halves
    assert not halves._waiting
    assert len(halves.loans) == 0
    assert await engine.call("check_integrity") is None  # behind the blocks that were sent back
    assert engine.stats.scheduler.kv_blocks_used == 0


def check_shares(engine: AsyncLLM) -> None:
    """All answers come from one replica, and all long prompts from the other."""
    answering = engine.stats.of(1)
    assert engine.stats.of(0).generation_tokens == 0
    assert answering.generation_tokens > 0
    assert answering.scheduler.host_tier is None  # nothing is copied
    halves = engine._fleet._halves
    assert min(LENGTHS) <= halves.alone < max(LENGTHS)
    blocks = [length // 16 * (length > halves.alone) for length in LENGTHS]
    assert halves.loans.num_lent == sum(blocks)
    read = sum(count * params(index).n for index, count in enumerate(blocks))
    assert answering.scheduler.prefix_cache_hits == 16 * read


async def check_abort(engine: AsyncLLM) -> None:
    """A request whose prompt is being computed ends at once."""
    task = asyncio.create_task(answer(engine, prompts(9)[0], 0))
    halves = engine._fleet._halves
    for _ in range(1000):
        await asyncio.sleep(0)
        if halves._waiting:
            break
    assert halves._waiting
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not halves._waiting
    assert engine.num_unfinished == 0
    assert await engine.call("check_integrity") is None
