"""The second turn of a conversation with a recurrent model, against the first.

    python benchmarks/second_turn.py [--repetitions 3] [--json FILE.jsonl]

Prints times to the first token. The first prompt has 2,000 tokens; the second turn repeats it, with
its answer and 40 more tokens; an edited prompt differs from the first in the middle. The model has
eight layers of Qwen3.5's heads, half as wide as Qwen3.5-0.8B, and random weights.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from quire import LLM, SamplingParams
from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, summarise, write_json

LENGTH, ANSWER, TURN = 2000, 64, 40
VOCAB = 32_000
CONFIG = {
    "model_type": "qwen3_5_text",
    "architectures": ["Qwen3_5ForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_value_heads": 16,
    "linear_num_key_heads": 16,
    "max_position_embeddings": 4096,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=jsonl, help="append a row of JSON to this .jsonl file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        with LLM(
            model=folder,
            load_format="dummy",
            max_model_len=2304,
            max_num_seqs=4,
        ) as llm:
            conversation(llm, seed=0)  # warm-up
            samples = [conversation(llm, seed) for seed in range(1, args.repetitions + 1)]
    row = summarise({"input_len": LENGTH}, samples)
    row["second_over_first"] = round(row["second_s"] / row["first_s"], 4)
    print(json.dumps(row, indent=2))
    if args.json:
        write_json(
            args.json, row | circumstances("second_turn", "python benchmarks/second_turn.py")
        )


def conversation(llm: LLM, seed: int) -> dict[str, Any]:
    """Return the times to the first token, and the cached tokens, of one conversation."""
    draw = Random(seed)
    prompt = [draw.randrange(VOCAB) for _ in range(LENGTH)]
    first, _, _ = ask(llm, prompt, 1)
    _, answer, _ = ask(llm, prompt, ANSWER)
    turn = [*prompt, *answer, *(draw.randrange(VOCAB) for _ in range(TURN))]
    second, _, second_cached = ask(llm, turn, 1)
    middle = LENGTH // 2
    edited = [*prompt[:middle], (prompt[middle] + 1) % VOCAB, *prompt[middle + 1 :]]
    third, _, third_cached = ask(llm, edited, 1)
    return {
        "first_s": first,
        "second_s": second,
        "edited_s": third,
        "second_cached": second_cached,
        "edited_cached": third_cached,
    }


def ask(llm: LLM, prompt: list[int], count: int) -> tuple[float, list[int], int]:
    """Return the seconds that an answer takes, the answer, and how many tokens were cached."""
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    start = time.perf_counter()
    [output] = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    seconds = time.perf_counter() - start
    return seconds, list(output.outputs[0].token_ids), output.num_cached_tokens


if __name__ == "__main__":
    main()
