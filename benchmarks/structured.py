"""What structured output costs per token: the same streams free and under a JSON schema, in turns.

    python benchmarks/structured.py [--model qwen3-0.6b] [--streams 16] [--rounds 6] [--json FILE]

A round generates with every stream free, then with every stream under a schema of its own, so long
that none ends. Both compute the same number of tokens in the same steps; what differs is the masks:
their filling, and what a masked row's sampling costs. The bar is 5 % at 16 streams.
"""

from __future__ import annotations

import argparse
import statistics
import time
from random import Random
from typing import Any

from quire import LLM, SamplingParams, StructuredOutputsParams
from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, write_json


def schema(stream: int) -> dict[str, Any]:
    """A list of people, of which no model reaches the end."""
    person = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
            f"note_{stream}": {"type": "string", "pattern": "^[A-Z][a-z ]+$"},
        },
        "required": ["name", "age", "tags", f"note_{stream}"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": person, "minItems": 1000}


def seconds_per_token(llm: LLM, asked: list[Any], params: list[SamplingParams]) -> float:
    """Of one round, the prompts' step not counted: they are a few tokens."""
    tokens = params[0].max_tokens
    assert tokens is not None
    start = time.perf_counter()
    outputs = llm.generate(asked, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    assert all(len(output.outputs[0].token_ids) == tokens for output in outputs)
    return seconds / tokens


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Medians of the rounds, and of their ratios."""
    rng = Random(0)
    with LLM(
        arguments.model,
        load_format="auto" if arguments.model == "embedded" else "dummy",
        dtype=arguments.dtype,
        quantization=arguments.quantization,
        max_model_len=512,
        num_gpu_blocks_override=arguments.streams * 20,
    ) as llm:
        ids = [[rng.randrange(100, 2000) for _ in range(16)] for _ in range(arguments.streams)]
        asked = [{"prompt_token_ids": prompt} for prompt in ids]
        free = SamplingParams(
            temperature=arguments.temperature, max_tokens=arguments.tokens, ignore_eos=True, seed=1
        )
        held = [
            free.replace(structured_outputs=StructuredOutputsParams(json=schema(stream)))
            for stream in range(arguments.streams)
        ]
        seconds_per_token(llm, asked, held)  # compiles, and warms up
        rounds = [
            (
                seconds_per_token(llm, asked, [free] * arguments.streams),
                seconds_per_token(llm, asked, held),
            )
            for _ in range(arguments.rounds)
        ]
    return {
        "model": arguments.model,
        "streams": arguments.streams,
        "temperature": arguments.temperature,
        "free_ms": 1e3 * statistics.median(free for free, _ in rounds),
        "structured_ms": 1e3 * statistics.median(held for _, held in rounds),
        "ratio": statistics.median(held / free for free, held in rounds),
        "ratios": [held / free for free, held in rounds],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantization")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=jsonl, metavar="FILE", help="a .jsonl file, to append a row")
    arguments = parser.parse_args()
    row = measure(arguments)
    print(
        f"{row['model']}, {row['streams']} streams: {row['free_ms']:.2f} ms a token free, "
        f"{row['structured_ms']:.2f} ms under a schema: {100 * (row['ratio'] - 1):+.1f} %"
    )
    print("rounds: " + ", ".join(f"{100 * (ratio - 1):+.1f} %" for ratio in row["ratios"]))
    if arguments.json:
        program = "python benchmarks/structured.py"
        write_json(arguments.json, row | circumstances("structured", program))


if __name__ == "__main__":
    main()
