"""The grid of speculation: `python -m tests.fuzz.speculation`.

Each cell is a method, a number of concurrent requests and a temperature, on a random engine. The
requests use what Quire has: structures, tool calls, penalties, log-probabilities, adapters, stop
strings and more. Some clients leave, and some steps fail. Tokens and log-probabilities must equal
those of the same requests alone, without speculation.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from math import inf
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from quire.bench.machine import circumstances
from quire.bench.results.report import write_json
from quire.core.config import TEXT_METHODS
from quire.core.errors import ConfigError
from tests.fuzz.asked import VOCAB, Asked, draw_params
from tests.fuzz.combinations import alone, difference, together
from tests.fuzz.engines import MODELS, World, draft_methods, draw_world, speculation

METHODS = ("ngram", "suffix", "draft_model", "mtp", "eagle", "eagle3")
CONCURRENCY = (1, 8, 32)
TEMPERATURES = (0.0, 0.7, 1.0)
MAX_TOKENS = 24
TOOL_CALL: dict[str, Any] = {
    "structural_tag": {
        "structures": [{"begin": "a", "schema": {"type": "integer"}, "end": "e"}],
        "triggers": ["a"],
    }
}
"""A call begins at the letter, which random weights write now and then."""
SEVERAL = {"tensor_parallel_size", "pipeline_parallel_size"}
DROPPED = ("speculative_config", "kv_offloading_dir", "pipeline_parallel_size")
"""Flags of random engines that the grid sets itself or leaves out."""


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
    logprob_differences: int  # and those of text, prompt_logprobs and reasons
    features: Counter[str]


def run(cell: Cell, num_prompts: int, seed: int) -> Found:
    """Answer the same prompts alone without speculation, and together with it."""
    random = Random(f"{seed} {cell}")
    while True:
        world = draw(random, cell, num_prompts)
        try:
            return _run(world)
        except ConfigError:  # flags of this engine exclude each other
            continue
        except BaseException as error:
            error.add_note(f"{cell}, seed {seed}: {world.model}, {world.numbers}, {world.flags}")
            raise


def _run(world: World) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        expected = alone(world, Path(folder))
        engine, got = together(world, Path(folder), expected)
    stats = engine.scheduler.stats()
    drafts = stats.spec_decoding
    wrong: Counter[str] = Counter()
    for one, other in zip(got, expected, strict=True):
        if found := difference(one, other):
            wrong["tokens" if ": tokens: " in found else "logprobs"] += 1
    features = _features(world)
    features |= Counter(preempted=stats.num_preemptions, failed_steps=engine.num_failed)
    return Found(
        world.model,
        sum(len(each["tokens"]) for answers in got for each in answers),
        drafts.num_draft_tokens,
        drafts.num_accepted_tokens,
        wrong["tokens"],
        wrong["logprobs"],
        features,
    )


def draw(random: Random, cell: Cell, num_prompts: int) -> World:
    """Return an engine that drafts by the cell's method, and requests of the cell's temperature."""
    while cell.method not in draft_methods((world := draw_world(random)).model):
        pass
    if random.random() < 0.1 and world.numbers.get("ops") is None and world.model != "embedded":
        world.numbers |= {"tensor_parallel_size": 2, "num_threads": 2}
    elif cell.method in TEXT_METHODS and random.random() < 0.2 and _has_stages(world):
        world.numbers |= {"pipeline_parallel_size": 2, "num_threads": 2}
    lora = random.random() < 0.3
    world.asked = [_request(random, cell, number, lora) for number in range(num_prompts)]
    for one, other in zip(world.asked[1::4], world.asked, strict=False):
        one.prompt = other.prompt  # suffix decoding finds earlier answers
    world.flags = _flags(random, world, cell) | _drafts(random, cell, world.numbers)
    steps = range(1, 4 * num_prompts)
    world.resets = sorted(random.sample(steps, 2)) if world.resets else []
    world.failures = sorted(random.sample(steps, 4)) if world.failures else []
    if SEVERAL & world.numbers.keys():
        world.failures = []  # they would be of one rank
    world.reloads = [(random.choice(steps), 1)] if world.reloads and lora else []
    world.oracle, world.again = False, None
    return world


def _has_stages(world: World) -> bool:
    """Return whether the model can be divided into stages that draft."""
    return bool(MODELS[world.model]) and world.numbers.get("ops") is None


def _request(random: Random, cell: Cell, number: int, lora: bool) -> Asked:
    prompt = _prompt(random)
    params = draw_params(random, embeds=False)
    params["max_tokens"] = most = min(params["max_tokens"], MAX_TOKENS)
    params["temperature"] = cell.temperature
    if cell.temperature:
        params["seed"] = number
    else:
        params = {key: value for key, value in params.items() if key not in ("seed", "top_p")}
    if "min_tokens" in params:
        params["min_tokens"] = min(params["min_tokens"], most)
    if params.get("structured_outputs") and random.random() < 0.5:
        params["structured_outputs"] = TOOL_CALL
    elif random.random() < 0.2 and not {"structured_outputs", "min_tokens"} & params.keys():
        params["allowed_token_ids"] = sorted(set(prompt))[:3]  # few tokens repeat often
    return Asked(
        prompt,
        params,
        adapter=random.randint(0, 3) if lora else 0,
        salt=random.choice([None, None, None, "salt"]),
        priority=random.randint(0, 3),
        comes=number * MAX_TOKENS // 2 // cell.concurrency,
        stays=random.randint(1, 30) if random.random() < 0.1 else None,
        kind=random.choice([0, 1, 2, 2]),
    )


def _prompt(random: Random) -> list[int]:
    """Return a prompt that repeats itself, so that text indexes find drafts."""
    phrase = [random.randrange(VOCAB - 2) for _ in range(random.randint(1, 12))]
    return (phrase * 8)[: random.randint(1, 50)]


def _flags(random: Random, world: World, cell: Cell) -> dict[str, Any]:
    flags = {k: v for k, v in world.flags.items() if k not in DROPPED and "lora" not in k}
    flags["max_num_seqs"] = cell.concurrency
    if "max_num_batched_tokens" in flags:
        flags["max_num_batched_tokens"] = max(cell.concurrency, flags["max_num_batched_tokens"])
    if SEVERAL & world.numbers.keys():
        for name in ("num_threads", "cpu_offload_gb"):
            flags.pop(name, None)
    if "pipeline_parallel_size" in world.numbers:
        flags.pop("num_scheduler_steps", None)
    longest = max(len(each.prompt) for each in world.asked) + MAX_TOKENS
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


def _features(world: World) -> Counter[str]:
    """Count requests, and cells, by what they use."""
    numbers, flags, shape = world.numbers, world.flags, MODELS[world.model]
    found: Counter[str] = Counter()
    for asked in world.asked:
        params = asked.params
        structure = params.get("structured_outputs")
        found.update(name for name in params if name not in ("temperature", "seed", "max_tokens"))
        found["tool_call"] += structure is TOOL_CALL
        found["adapter"] += asked.adapter > 0
        found["cancelled"] += asked.stays is not None
    engine = {
        "sliding_window": "sliding_window" in shape or "attention_chunk_size" in shape,
        "moe": any("experts" in key for key in shape),
        "latent_kv": "kv_lora_rank" in shape,
        "tensor_parallel": "tensor_parallel_size" in numbers,
        "stages": "pipeline_parallel_size" in numbers,
        "async": flags.get("async_scheduling", False),
        "multi_step": flags.get("num_scheduler_steps", 1) > 1,
        "swap": flags.get("preemption_mode") == "swap",
        "host_kv": "kv_offloading_size" in flags,
        "weights_in_file": "cpu_offload_gb" in flags,
        "eager": flags.get("enforce_eager", False),
        "depth_by_prediction": "num_speculative_tokens_per_batch_size"
        not in flags["speculative_config"],
        f"kv_{numbers.get('kv_cache_dtype', 'auto')}": True,
        f"weights_{numbers.get('quantization', numbers['dtype'])}": True,
    }
    found.update(f"engine:{name}" for name, used in engine.items() if used)
    return found


def main() -> int:
    """Run all cells, print a row for each, and return 1 if any answer differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--engines", type=int, default=1, help="random engines per cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--concurrency", nargs="+", type=int, default=CONCURRENCY)
    parser.add_argument("--json", type=Path, help="append rows, and skip cells that have one")
    parser.add_argument("--seconds", type=float, default=inf, help="start no cell after this time")
    args = parser.parse_args()
    logging.disable(logging.ERROR)
    begin, wrong = time.monotonic(), 0
    done = _recorded(args.json)
    seeds = range(args.seed, args.seed + args.engines)
    grid = itertools.product(seeds, args.method, args.concurrency, TEMPERATURES)
    todo = [each for each in grid if (*each, args.prompts) not in done]
    for number, (seed, *each) in enumerate(todo):
        if time.monotonic() - begin > args.seconds:
            print(f"{len(todo) - number} cells are left: run the command again")
            break
        cell = Cell(*each)
        found = run(cell, args.prompts, seed)
        row = {**cell._asdict(), "seed": seed, "prompts": args.prompts, **found._asdict()}
        row["features"] = {name: count for name, count in found.features.items() if count}
        print(*cell, seed, *found[:-1], sep="\t", flush=True)
        wrong += found.token_differences + found.logprob_differences
        if args.json:
            program = "python -m tests.fuzz.speculation"
            write_json(args.json, row | circumstances("speculation_grid", program))
        done[(seed, *each, args.prompts)] = row
    _print_totals([*done.values()])
    return int(wrong > 0)


def _recorded(path: Path | None) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the rows of cells in a file, by seed, cell and number of prompts."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    names = "seed", *Cell._fields, "prompts"
    return {
        tuple(row[name] for name in names): row
        for row in rows
        if row["bench"] == "speculation_grid"
    }


def _print_totals(rows: list[dict[str, Any]]) -> None:
    features: Counter[str] = Counter()
    for row in rows:
        features.update(row["features"])
    print("Requests, and engines, by feature:", dict(sorted(features.items())))
    for method in METHODS:
        of = [row for row in rows if row["method"] == method]
        names = "prompts", "tokens", "drafted", "accepted"
        names += "token_differences", "logprob_differences"
        print(
            f"{method}: {len(of)} cells", *(f"{sum(r[n] for r in of)} {n}" for n in names), sep=", "
        )


if __name__ == "__main__":
    sys.exit(main())
