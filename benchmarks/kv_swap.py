"""KV blocks that leave the cache: what bringing them back costs, and what computing them again.

    python benchmarks/kv_swap.py [--model qwen3-0.6b] [--repetitions 3] [--json FILE]

Three tables, of a model with random weights:

1. A sequence's blocks copied to host memory and back, beside computing its tokens, each as measured
   and as predicted: the prediction decides how a request is preempted.
2. The same requests in a KV cache too small for them, with preemption by recompute and by swap, in
   turn. Their tokens must be the same.
3. Time to the first token of a prompt of 2,000 tokens: new, in the KV cache, in host memory, and in
   files. The last block is always computed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from quire import LLM, SamplingParams
from quire.core.batch import BlockCopies, BlockLoad, BlockStore
from quire.core.config import EngineConfig
from quire.core.dtypes import dtype_of
from quire.models.cost import first_guess
from quire.ops.torch_ops.provider import TorchOps
from quire.runner.kv_host import HostKV
from quire.runner.kv_tensors import allocate_kv_caches

BLOCK = 16
LENGTHS = (256, 1024, 2048)
PREFIX = 2000
GIB = 2**30


def seconds_of(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def prompt(length: int, seed: int) -> dict[str, list[int]]:
    rng = Random(seed)
    return {"prompt_token_ids": [rng.randrange(100, 30_000) for _ in range(length)]}


def first_token(llm: LLM, asked: dict[str, list[int]]) -> float:
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    return seconds_of(lambda: llm.generate([asked], params, use_tqdm=False))


def copies(config: EngineConfig, repetitions: int) -> dict[int, dict[str, float]]:
    """Seconds of storing and loading sequences of each length, and gigabytes a second."""
    blocks = max(LENGTHS) // BLOCK
    dtype = dtype_of(config.kv_cache_dtype)
    caches = allocate_kv_caches(TorchOps(), config.model, blocks, BLOCK, dtype)
    for cache in caches:
        cache.k.zero_()
        cache.v.zero_()
    host = HostKV(caches, blocks, threads=config.num_threads)
    keys = [b"%d" % i for i in range(blocks)]
    order = Random(0).sample(range(blocks), blocks)
    stores = [BlockStore(*row) for row in zip(order, range(blocks), keys, strict=True)]
    loads = [BlockLoad(*row) for row in zip(range(blocks), order[::-1], keys, strict=True)]
    host.copy(BlockCopies([], [], stores, []))  # the pages come with the first touch
    found: dict[int, dict[str, float]] = {}
    for length in LENGTHS:
        count = length // BLOCK
        out, back = [], []
        storing = BlockCopies([], [], stores[:count], [])
        loading = BlockCopies([], [], [], loads[:count])
        for _ in range(max(5, repetitions)):
            out.append(seconds_of(partial(host.copy, storing)))
            back.append(seconds_of(partial(host.copy, loading)))
        gigabytes = count * host.slots[0].nbytes / 1e9
        found[length] = {"out": min(out), "back": min(back)}
        found[length]["gb_s"] = 2 * gigabytes / (min(out) + min(back))
    return found


def swap_or_recompute(model: str, repetitions: int) -> dict[str, Any]:
    flags = {"load_format": "dummy", "enable_prefix_caching": False, "max_model_len": 2304}
    with LLM(model=model, **flags) as llm:
        config = llm.resolved.config
        compute = {
            length: min(first_token(llm, prompt(length, i)) for i in range(max(2, repetitions)))
            for length in LENGTHS
        }
    cost = first_guess(config)
    rows = {}
    for length, copy in copies(config, repetitions).items():
        rows[length] = {
            "copy_s": copy["out"] + copy["back"],
            "copy_gb_s": copy["gb_s"],
            "compute_s": compute[length],
            "predicted_copy_s": 2 * cost.copy_seconds(length),
            "predicted_compute_s": cost.seconds(length, 1, length, length * (length + 1) // 2),
        }
    print("tokens   copied there and back   computed     predicted: copied   computed   copy GB/s")
    for length, row in rows.items():
        print(
            f"{length:6d}   {row['copy_s'] * 1e3:18.1f} ms {row['compute_s'] * 1e3:8.0f} ms "
            f"{row['predicted_copy_s'] * 1e3:18.1f} ms {row['predicted_compute_s'] * 1e3:7.0f} ms "
            f"{row['copy_gb_s']:11.1f}"
        )
    return {str(length): row for length, row in rows.items()}


def preemption(model: str, repetitions: int) -> dict[str, Any]:
    """Six requests that grow from 256 to 352 tokens in a KV cache of 912."""
    asked = [prompt(256, i) for i in range(6)]
    params = SamplingParams(temperature=0.0, max_tokens=96, ignore_eos=True)
    walls: dict[str, list[float]] = {"recompute": [], "swap": []}
    answers, swaps = set(), {}
    for _ in range(repetitions):
        for mode, found in walls.items():
            with LLM(
                model=model,
                load_format="dummy",
                max_model_len=1024,
                num_gpu_blocks_override=912 // BLOCK,
                enable_prefix_caching=False,
                swap_space=1.0,
                preemption_mode=mode,
            ) as llm:
                start = time.perf_counter()
                outputs = llm.generate(asked, params, use_tqdm=False)
                found.append(time.perf_counter() - start)
                answers.add(tuple(tuple(o.outputs[0].token_ids) for o in outputs))
                assert llm.stats.scheduler is not None
                swaps[mode] = llm.stats.scheduler.num_preemptions
    assert len(answers) == 1, "preemption changed a token"
    ratio = statistics.median(
        swap / again for swap, again in zip(walls["swap"], walls["recompute"], strict=True)
    )
    print("\npreemption     seconds   preemptions")
    for mode, found in walls.items():
        print(f"{mode:<12}{min(found):10.2f} {swaps[mode]:13d}")
    print(f"swap / recompute: {ratio:.2f}, same tokens")
    return {**{f"{mode}_s": min(found) for mode, found in walls.items()}, "ratio": ratio}


def prefixes(model: str, repetitions: int) -> dict[str, Any]:
    """Time to the first token by where the prefix is found."""
    found: dict[str, list[float]] = {place: [] for place in ("new", "cache", "host", "files")}
    with tempfile.TemporaryDirectory() as folder:
        with LLM(model=model, load_format="dummy", max_model_len=2304) as llm:
            block_bytes = BLOCK * int(llm.facts["kv_bytes_per_token"])  # type: ignore[call-overload]
        blocks = -(-PREFIX // BLOCK) + 4  # one such prompt and no more
        with LLM(
            model=model,
            load_format="dummy",
            max_model_len=2048,
            num_gpu_blocks_override=blocks,
            kv_offloading_size=1.2 * blocks * block_bytes / GIB,
            kv_offloading_dir=folder,
            kv_offloading_disk_size=40 * blocks * block_bytes / GIB,
        ) as llm:
            for repetition in range(repetitions):
                ours, other, third = (prompt(PREFIX, 100 * repetition + i) for i in range(3))
                found["new"].append(first_token(llm, ours))
                found["cache"].append(first_token(llm, ours))
                first_token(llm, other)  # it takes the blocks: ours go to host memory
                found["host"].append(first_token(llm, ours))
                first_token(llm, other)
                first_token(llm, third)  # and now to files
                found["files"].append(first_token(llm, ours))
            assert llm.stats.scheduler is not None
            host = llm.stats.scheduler.host_tier
            assert host is not None
            assert host.saved
    best = {place: min(seconds) for place, seconds in found.items()}
    print(f"\nfirst token of {PREFIX} tokens, by where their blocks are")
    for place, seconds in best.items():
        print(f"{place:<8}{seconds * 1e3:9.0f} ms   {seconds / best['new']:5.2f} x new")
    return {f"{place}_s": seconds for place, seconds in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-0.6b", help="a preset")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    args = parser.parse_args()
    result = {
        "model": args.model,
        "copy_or_compute": swap_or_recompute(args.model, args.repetitions),
        "preemption": preemption(args.model, args.repetitions),
        "prefix": prefixes(args.model, args.repetitions),
    }
    if args.json:
        args.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
