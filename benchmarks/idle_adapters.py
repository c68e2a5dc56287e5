"""What it costs that adapters are served, where nobody uses one.

    python benchmarks/idle_adapters.py [--model NAME] [--rank R] [--rounds N]

Two engines of one process, one of them with an adapter of random numbers on every layer in memory,
generate the same batch without it in turns; who is first changes from round to round. Prints one
row of JSON: what a token and a first token take where adapters are served over what they take where
none are, of all rounds the median, the lowest and the highest.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
from contextlib import ExitStack

from quire import LLM, SamplingParams
from quire.bench.adapters import random_adapter
from quire.bench.latency import timings
from quire.bench.machine import circumstances
from quire.bench.serving.workload import token_prompts
from quire.checkpoint.presets import preset_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    logging.disable(logging.INFO)
    known = preset_config(args.model) is not None
    fields = {
        "load_format": "dummy" if known else "auto",
        "dtype": args.dtype,
        "max_model_len": args.input_len + args.output_len,
        "enable_prefix_caching": False,
    }
    with ExitStack() as stack:
        without = stack.enter_context(LLM(args.model, **fields))
        served = {"enable_lora": True, "max_lora_rank": args.rank}
        beside = stack.enter_context(LLM(args.model, **fields, **served))
        adapter = stack.enter_context(random_adapter(beside.resolved.config.model, args.rank))
        ratios = measure(args, without, beside, adapter)
    row: dict[str, object] = {**vars(args)}
    for of, figure in (("", statistics.median), ("min", min), ("max", max)):
        found = {name: figure(each) for name, each in ratios.items()}
        row |= {of: found} if of else found
    print(json.dumps(row | circumstances("idle_adapters", "python benchmarks/idle_adapters.py")))


def measure(
    args: argparse.Namespace, without: LLM, beside: LLM, adapter: object
) -> dict[str, list[float]]:
    """Ratios of each round; the first batches, of which one has the adapter, do not count."""

    def batch(llm: LLM, seed: int, lora_request: object = None) -> dict[str, float]:
        vocabulary = llm.resolved.config.model.vocab_size
        prompts = token_prompts(args.batch_size, args.input_len, vocabulary, [seed])
        params = SamplingParams(temperature=0.0, max_tokens=args.output_len, ignore_eos=True)
        outputs = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            params,
            False,
            lora_request=lora_request,
        )
        return timings([o.metrics for o in outputs], args.input_len, args.output_len)

    batch(without, 0)
    batch(beside, 0, adapter)
    batch(beside, 0)
    ratios: dict[str, list[float]] = {"tpot_ratio": [], "ttft_ratio": []}
    for number in range(1, args.rounds + 1):
        order = (without, beside) if number % 2 else (beside, without)
        took = {id(llm): batch(llm, number) for llm in order}
        base, served = took[id(without)], took[id(beside)]
        ratios["tpot_ratio"].append(served["tpot_ms"] / base["tpot_ms"])
        ratios["ttft_ratio"].append(served["ttft_s"] / base["ttft_s"])
    return ratios


if __name__ == "__main__":
    main()
