"""The grid of speculation: `python -m tests.fuzz.speculation`.

Each cell is a method, a number of concurrent requests and a temperature, on a random engine. Tokens
and log-probabilities must equal those of the same requests alone, without speculation.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from quire import LLM, SamplingParams
from quire.core.outputs import RequestOutput
from tests.fuzz.combinations import PLAIN
from tests.fuzz.engines import (
    MODELS,
    VOCAB,
    draft_methods,
    drafting_by,
    draw_world,
    speculation,
    write_model,
)

METHODS = ("ngram", "suffix", "draft_model", "mtp", "eagle", "eagle3")
CONCURRENCY = (1, 8, 32)
TEMPERATURES = (0.0, 0.7, 1.0)
MAX_TOKENS = 24
DROPPED = ("speculative_config", "kv_offloading_dir", "enable_lora", "max_loras", "max_cpu_loras")
"""Flags of random engines that the grid sets itself, or that these requests do not use."""


class Cell(NamedTuple):
    method: str
    concurrency: int
    temperature: float


class Found(NamedTuple):
    """What a cell counted."""

    model: str
    tokens: int
    drafted: int
    accepted: int
    token_differences: int
    logprob_differences: int


def run(cell: Cell, num_prompts: int, seed: int) -> Found:
    """Answer the same prompts alone without speculation, and together with it."""
    random = Random(f"{seed} {cell}")
    while cell.method not in draft_methods((world := draw_world(random)).model):
        pass
    prompts = [_prompt(random) for _ in range(num_prompts)]
    prompts[1::4] = prompts[: len(prompts[1::4])]  # suffix decoding finds earlier answers
    params = [_params(random, cell, prompt) for prompt in prompts]
    numbers = dict(world.numbers)
    if MODELS[world.model]:
        numbers["load_format"] = "dummy"
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "model", world.model)
        with LLM(model, **{**numbers, **PLAIN}) as plain:
            expected = _answers(plain, prompts, params)
        flags = {
            **numbers,
            **_flags(random, world.flags, cell, prompts),
            **_drafts(random, cell, numbers),
        }
        with LLM(model, **drafting_by(model, flags)) as llm:
            got = _answers(llm, prompts, params)
            stats = llm.stats.scheduler
    assert stats is not None
    assert stats.spec_decoding is not None
    return Found(
        world.model,
        sum(len(each.outputs[0].token_ids) for each in got),
        stats.spec_decoding.num_draft_tokens,
        stats.spec_decoding.num_accepted_tokens,
        sum(
            a.outputs[0].token_ids != b.outputs[0].token_ids
            for a, b in zip(got, expected, strict=True)
        ),
        sum(
            a.outputs[0].logprobs != b.outputs[0].logprobs
            for a, b in zip(got, expected, strict=True)
        ),
    )


def _prompt(random: Random) -> list[int]:
    """Return a prompt that repeats itself, so that text indexes find drafts."""
    phrase = [random.randrange(VOCAB - 2) for _ in range(random.randint(1, 12))]
    return (phrase * 8)[: random.randint(1, 50)]


def _params(random: Random, cell: Cell, prompt: list[int]) -> SamplingParams:
    return SamplingParams(
        temperature=cell.temperature,
        seed=len(prompt),
        max_tokens=MAX_TOKENS,
        logprobs=random.randint(0, 2),
        top_p=random.choice([1.0, 0.9]),
        # Few tokens repeat often.
        allowed_token_ids=random.choice([None, sorted(set(prompt))[:3]]),
    )


def _flags(
    random: Random, drawn: dict[str, Any], cell: Cell, prompts: list[list[int]]
) -> dict[str, Any]:
    flags = {name: value for name, value in drawn.items() if name not in DROPPED}
    flags["max_num_seqs"] = cell.concurrency
    if "max_num_batched_tokens" in flags:
        flags["max_num_batched_tokens"] = max(cell.concurrency, flags["max_num_batched_tokens"])
    longest = max(map(len, prompts)) + MAX_TOKENS
    share = random.choice([0.5, 1.0])  # with half of the blocks, requests are preempted
    blocks = -(-longest // flags["block_size"])
    flags["num_gpu_blocks_override"] = blocks * max(2, int(share * cell.concurrency))
    return flags


def _drafts(random: Random, cell: Cell, numbers: dict[str, Any]) -> dict[str, Any]:
    config = speculation(random, numbers, [cell.method])
    if "num_speculative_tokens_per_batch_size" in config:
        config["num_speculative_tokens_per_batch_size"] = [
            [1, max(CONCURRENCY), config["num_speculative_tokens"]]
        ]
    return {"speculative_config": config}


def _answers(
    llm: LLM, prompts: list[list[int]], params: list[SamplingParams]
) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)


def main() -> int:
    """Run all cells, print a row for each, and return 1 if any answer differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--engines", type=int, default=1, help="random engines per cell")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    total, wrong, requests, begin = 0, 0, 0, time.monotonic()
    grid = list(itertools.product(METHODS, CONCURRENCY, TEMPERATURES))
    for engine, each in itertools.product(range(args.engines), grid):
        cell = Cell(*each)
        found = run(cell, args.prompts, args.seed + engine)
        print(*cell, *found, sep="\t", flush=True)
        wrong += found.token_differences + found.logprob_differences
        total += found.tokens
        requests += args.prompts
    print(
        f"{requests} requests, {total} tokens, {wrong} differences in "
        f"{time.monotonic() - begin:.0f} s"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
