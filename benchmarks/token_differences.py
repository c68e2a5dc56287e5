"""Does any way to run a request change a token of its answer? It must not.

    python benchmarks/token_differences.py [--prompts N] [--model NAME]
        [--types bfloat16 int8] [--concurrency 1 8 32]

Each prompt is answered alone, whole, with nothing cached; then all of them under every combination
of concurrency, chunk size, pipeline, and what happens to the KV cache: shared prefixes are found
there, or requests are preempted and computed again, or swapped out and in. A line a combination;
the exit status is 1 if a token differs, or where nobody was preempted who should have been.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
from random import Random
from typing import Any

from quire import LLM, SamplingParams
from quire.core.outputs import RequestOutput

TYPES: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"},
}
CONCURRENCY = (1, 8, 32)
CHUNKS = (32, 200, 2048)
PIPELINES: dict[str, dict[str, Any]] = {
    "plain": {},
    "multi-step": {"num_scheduler_steps": 5},
    "async": {"async_scheduling": True},
    "async, multi-step": {"async_scheduling": True, "num_scheduler_steps": 3},
}
FEW_BLOCKS = {"num_gpu_blocks_override": 30}
CACHES: dict[str, dict[str, Any]] = {
    "nothing shared": {"enable_prefix_caching": False},
    "prefix hits": {},
    "recompute": {**FEW_BLOCKS, "preemption_mode": "recompute"},
    "swap": {**FEW_BLOCKS, "preemption_mode": "swap", "swap_space": 0.5},
}
LONGEST_PROMPT = 190
VOCAB = 500


def prompts(count: int) -> list[dict[str, list[int]]]:
    """Of mixed length; every other one begins with one of two stems."""
    rng = Random(1)
    stems = [[rng.randrange(3, VOCAB) for _ in range(70)] for _ in range(2)]
    asked = []
    for i in range(count):
        tail = [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, LONGEST_PROMPT - 70))]
        asked.append({"prompt_token_ids": (rng.choice(stems) if i % 2 else []) + tail})
    return asked


def params(count: int) -> list[SamplingParams]:
    """A third greedy, a third drawn, a third with penalties, stop tokens and log-probabilities."""
    rng = Random(2)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0, "ignore_eos": True},
        {"temperature": 0.9, "top_p": 0.95, "ignore_eos": True},
        {
            "temperature": 0.7,
            "repetition_penalty": 1.2,
            "min_tokens": 3,
            "stop_token_ids": list(range(0, VOCAB, 17)),
            "logprobs": 1,
        },
    ]
    return [
        SamplingParams(seed=i, max_tokens=rng.randint(4, 40), **kinds[i % 3]) for i in range(count)
    ]


def answers(model: str, count: int, flags: dict[str, Any]) -> list[RequestOutput]:
    with LLM(model=model, max_model_len=256, ops="cpu", **flags) as llm:
        return llm.generate(prompts(count), params(count), use_tqdm=False)


def differences(outputs: list[RequestOutput], expected: list[RequestOutput]) -> int:
    """Tokens that differ, or are there in one only; log-probabilities that do count as well."""
    total = 0
    for output, wanted in zip(outputs, expected, strict=True):
        one, other = output.outputs[0], wanted.outputs[0]
        pairs = itertools.zip_longest(one.token_ids, other.token_ids)
        total += sum(a != b for a, b in pairs)
        total += one.logprobs != other.logprobs or one.finish_reason != other.finish_reason
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--concurrency", nargs="+", type=int, default=CONCURRENCY)
    args = parser.parse_args()
    logging.disable(logging.INFO)
    wrong = 0
    for name in args.types:
        alone = {"max_num_seqs": 1, "enable_prefix_caching": False}
        expected = answers(args.model, args.prompts, TYPES[name] | alone)
        for seqs, chunk, pipeline, cache in itertools.product(
            args.concurrency, CHUNKS, PIPELINES, CACHES
        ):
            limits = {"max_num_seqs": seqs, "max_num_batched_tokens": chunk}
            flags = TYPES[name] | limits | PIPELINES[pipeline] | CACHES[cache]
            outputs = answers(args.model, args.prompts, flags)
            count = differences(outputs, expected)
            preempted = sum(output.metrics.num_preemptions for output in outputs)
            cached = sum(output.num_cached_tokens for output in outputs)
            should_preempt = seqs == max(CONCURRENCY) and "num_gpu_blocks_override" in flags
            wrong += count > 0 or (should_preempt and not preempted)
            print(
                f"{name}, {seqs} at once, chunks of {chunk}, {pipeline}, {cache}: "
                f"{count} differences ({preempted} preemptions, {cached} cached tokens)",
                flush=True,
            )
    print(f"{wrong} combinations are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
