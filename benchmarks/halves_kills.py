"""Requests to replicas for prompts and for answers whose processes are killed at random moments.

    python benchmarks/halves_kills.py [--kills 50] [--seed 0] [--folder] [--json FILE.jsonl]

One replica of the embedded model computes prompts, and one answers; with `--folder` their blocks
travel through a folder, else they share memory. The core of either is killed, up to a second after
both are ready. Each answer must have the tokens that it had before: all of them, or for one that
lost two cores, the first ones and then an error. `moved` is how often a request went on at the
other core. At the end no block may be lent or in use.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, write_json
from quire.core.errors import QuireError
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.frontend.async_llm import AsyncLLM
from quire.frontend.client import supervisor
from quire.resolve.arguments import EngineArgs
from quire.routing.ledger import Ledger

CLIENTS, PROMPTS = 4, 12
PATIENCE = 60.0


class Load:
    """Prompts, their tokens, and what became of the requests."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine
        draw = random.Random(0)
        lengths = [draw.randrange(20, 600) for _ in range(PROMPTS)]
        self._prompts = [[draw.randrange(3, 3000) for _ in range(n)] for n in lengths]
        self.expected: list[list[int]] = []
        self.outcomes = Counter[str]()
        self.ends = False

    async def tokens(self, number: int, found: list[int]) -> None:
        """Add the tokens of an answer to `found`."""
        params = SamplingParams(
            temperature=number % 2,
            seed=number,
            max_tokens=16 + 8 * number,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt = {"prompt_token_ids": self._prompts[number]}
        async for output in self._engine.generate(prompt, params):
            found += output.outputs[0].token_ids

    async def learn(self) -> None:
        """Find the tokens of all answers before anything is killed."""
        for number in range(PROMPTS):
            self.expected.append([])
            await self.tokens(number, self.expected[-1])

    async def send(self, client: int) -> None:
        """Send one request after the other until `ends`."""
        draw = random.Random(client)
        while not self.ends:
            number, found = draw.randrange(PROMPTS), list[int]()
            expected = self.expected[number]
            try:
                await asyncio.wait_for(self.tokens(number, found), PATIENCE)
                outcome = "whole" if found == expected else "wrong"
            except TimeoutError:
                outcome = "lost"
            except QuireError:
                outcome = "error" if found else "refused"
                outcome = outcome if found == expected[: len(found)] else "wrong"
            self.outcomes[outcome] += 1
            if outcome == "refused":  # no core is ready
                await asyncio.sleep(0.1)


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Kill cores while clients send requests; return what became of these."""
    supervisor.HEALTHY_SECONDS = 0.0  # a core that was killed is not to blame
    flags: dict[str, Any] = {"num_gpu_blocks_override": 128, "prefill_replicas": 1}
    if args.folder:
        flags["speculative_config"] = {"method": "ngram", "num_speculative_tokens": 2}
    given = EngineArgs("embedded", num_threads=2, decode_replicas=1, max_num_seqs=8, **flags)
    engine = await AsyncLLM.start(given)
    try:
        load, draw, killed = Load(engine), random.Random(args.seed), Counter[str]()
        await load.learn()
        clients = [asyncio.create_task(load.send(client)) for client in range(CLIENTS)]
        replicas = engine._fleet.replicas
        while killed.total() < args.kills:
            await _until(lambda: all(replica.is_ready for replica in replicas))
            await asyncio.sleep(draw.random())
            kind, replica = draw.choice([*zip(("prompts", "answers"), replicas, strict=True)])
            os.kill(replica.client.pid, signal.SIGKILL)  # type: ignore[attr-defined]
            killed[kind] += 1
            await _until(lambda replica=replica: not replica.is_ready)
        load.ends = True
        await asyncio.gather(*clients)
        halves = engine._fleet._halves
        loans = halves.loans if halves is not None and halves.loans is not None else ()
        await _until(lambda: all(replica.is_ready for replica in replicas) and not loans)
        await _check_blocks(engine)
        moved = engine.stats.retried
    finally:
        engine.shutdown()
    kinds = ("whole", "error", "refused", "lost", "wrong")
    facts = {"killed_for_prompts": killed["prompts"], "killed_for_answers": killed["answers"]}
    facts |= {"requests": load.outcomes.total(), "moved": moved}
    facts |= {kind: load.outcomes[kind] for kind in kinds}
    return facts | {"lent": loans.num_lent if isinstance(loans, Ledger) else 0}


async def _check_blocks(engine: AsyncLLM) -> None:
    """Assert that no block of either core is in use, once each has answered a last request."""
    await engine.call("check_integrity")
    for rank in (0, 1):
        prompt = {"prompt_token_ids": [1 + rank]}
        async for _ in engine.generate(
            prompt, SamplingParams(max_tokens=1), data_parallel_rank=rank
        ):
            pass
        stats = engine.stats.of(rank).scheduler
        assert stats is not None
        assert stats.kv_blocks_used == 0, f"replica {rank} uses {stats.kv_blocks_used} blocks"


async def _until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds, but not forever."""
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError("a core is not ready again, or its blocks are not returned")
        await asyncio.sleep(1e-3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--folder", action="store_true", help="hand over in a folder")
    parser.add_argument("--json", type=jsonl, help="append a row of JSON to this .jsonl file")
    args = parser.parse_args()
    result = {"shares_memory": not args.folder} | asyncio.run(run(args))
    print(json.dumps(result, indent=2))
    if args.json:
        program = "python benchmarks/halves_kills.py"
        write_json(args.json, result | circumstances("halves_kills", program))
    return int(result["lost"] + result["wrong"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
