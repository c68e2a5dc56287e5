"""Replicas with features combined at random: `python -m tests.fuzz.replicas`.

Each request gets the answer that it gets alone in a plain engine, to the bit: whichever of two
replicas computes it, if one computes its prompt and the other its answer, if it is streamed, and if
a replica is killed meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from quire import LoRARequest
from quire.core.errors import ConfigError
from quire.core.sampling_params import RequestOutputKind
from quire.frontend.async_llm import AsyncLLM
from quire.frontend.client.core_client import ProcessClient
from quire.resolve.engine import engine_args
from tests.fuzz.asked import Asked
from tests.fuzz.combinations import alone, difference, told
from tests.fuzz.driven import Answer, prompt_of, sampling, started_with, write_adapter
from tests.fuzz.engines import World, draw_world
from tests.unit.frontend.test_core_client import until

PATIENCE = 120.0
SEVERAL = ("tensor_parallel_size", "pipeline_parallel_size")
TURN = 0.002
"""Seconds of a step by which requests come and go."""


def draw(random: Random) -> World:
    """Return a world of two replicas, whose steps do not fail."""
    world = draw_world(random)
    while any(name in world.numbers | world.flags for name in SEVERAL):
        world = draw_world(random)
    world.failures, world.reloads, world.oracle, world.again = [], [], False, None
    sides = [{"data_parallel_size": 2}, {"prefill_replicas": 1, "decode_replicas": 1}]
    world.flags |= random.choice(sides) | {"num_threads": 2}
    for name in ("ops", "num_threads"):
        world.numbers.pop(name, None)
    for asked in world.asked:
        asked.params.setdefault("seed", random.randrange(2**31))
        asked.comes = random.randint(0, 20)
    return world


async def answer(
    engine: AsyncLLM, asked: Asked, adapters: dict[int, LoRARequest], came: Any
) -> Any:
    """Return what a request is told; its client may leave."""
    await asyncio.sleep(TURN * asked.comes)
    kind, outputs = RequestOutputKind(asked.kind), []
    stream = engine.generate(
        prompt_of(asked, engine.model_config.hidden_size),
        sampling(asked, kind),
        priority=asked.priority,
        cache_salt=asked.salt,
        lora_request=adapters.get(asked.adapter),
    )
    async for output in stream:
        outputs.append(output)
        came()
        if asked.stays is not None and len(outputs) >= asked.stays:
            await stream.aclose()
            return None  # its answer has no end to compare
    return told(outputs, kind)


async def live(world: World, folder: Path, random: Random) -> list[list[Answer] | None]:
    """Return the answers of two replicas, of which one may be killed."""
    model, flags = started_with(world, folder, world.flags)
    engine = await AsyncLLM.start(engine_args(model, flags))
    try:
        adapters = {}
        for number in sorted({asked.adapter for asked in world.asked if asked.adapter}):
            if not (path := folder / f"a{number}").exists():
                write_adapter(path, engine.model_config, number)
            adapters[number] = LoRARequest(f"a{number}", number, str(path))
        left = itertools.count(random.randint(1, 40), -1)
        victim = engine._fleet.replicas[random.randrange(2)].client
        kills = random.random() < 0.6
        assert isinstance(victim, ProcessClient)

        def came() -> None:
            if next(left) == 1 and kills:
                os.kill(victim.pid, signal.SIGKILL)

        sent = [answer(engine, asked, adapters, came) for asked in world.asked]
        async with asyncio.timeout(PATIENCE):
            found = await asyncio.gather(*sent)
            await until(lambda: all(replica.is_ready for replica in engine._fleet.replicas))
            await engine.call("check_integrity")
        assert engine.num_unfinished == 0
        return found
    finally:
        engine.shutdown()


def case(random: Random) -> str:
    """One world; how it went."""
    world = draw(random)
    try:
        with tempfile.TemporaryDirectory() as folder:
            expected = alone(world, Path(folder))
            got = asyncio.run(live(world, Path(folder), random))
        for i, (one, other) in enumerate(zip(got, expected, strict=True)):
            found = None if one is None else difference(one, other)
            assert found is None, f"request {i}: {found}"
            ends = {each["finish_reason"] for each in one or ()}
            assert ends <= {each["finish_reason"] for each in other}, f"request {i}: {one}"
    except ConfigError as error:
        return f"refused: {error.param}"
    except BaseException as error:
        error.add_note(repr(world))
        raise
    return "halves" if "prefill_replicas" in world.flags else "replicas"


if __name__ == "__main__":
    from tests.fuzz.replay import main

    logging.disable(logging.CRITICAL)
    sys.exit(main("tests.fuzz.replicas", case, 60))
