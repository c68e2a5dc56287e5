"""How far `quire plan` is from an engine's memory and, with --speed, from its speed.

    python benchmarks/plan_error.py [--case MODEL:DTYPE:QUANTIZATION] … [--kv-mib 256]
        [--max-model-len N] [--speed] [--json FILE]

Each case plans, then starts an engine with random weights in a process of its own, fills its KV
cache with eight prompts, and reads the resident bytes. The bar is 10 %, and 5 % for experts.
Eight prompts fill the cache if it holds at most 16,000 tokens: lower --kv-mib for a model with few
bytes per token, and --max-model-len with it.

With --speed the plan measures the machine first, and the engine decodes one sequence at the plan's
context. The bar is 20 %. Both need a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, print_grid, write_json
from quire.checkpoint.presets import preset_config

CASES = (
    "opt-125m:bfloat16:",
    "gpt2:float32:",
    "qwen3-0.6b:bfloat16:fp8",
    "tinyllama-1.1b:bfloat16:int4",
    "llama-3.2-1b:bfloat16:q4_k",
    "gemma-3-1b:bfloat16:int8",
    "olmoe-1b-7b:bfloat16:int4",
)
BAR, EXPERTS_BAR, SPEED_BAR = 0.10, 0.05, 0.20
OUTPUT_LEN = 33
"""Tokens of a prompt's answer whose speed is measured."""
_FILL = """
import json, re, statistics, sys
from pathlib import Path
from quire import LLM, SamplingParams

llm = LLM(**json.loads(sys.argv[1]))
context, tokens = json.loads(sys.argv[2])


def seconds_per_token(n):
    prompt = {"prompt_token_ids": [7 + n] * context}
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    [output] = llm.generate([prompt], params, use_tqdm=False)
    times = output.metrics
    return (times.last_token_time - times.first_token_time) / (tokens - 1)


speed = 1 / statistics.median(map(seconds_per_token, range(4))) if tokens else 0.0
length = min(llm.facts["num_blocks"] * 16 // 8, 2048) - 8
prompts = [{"prompt_token_ids": [7 + n] * length} for n in range(8)]
llm.generate(prompts, SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
status = Path("/proc/self/status").read_text()
print(json.dumps([int(re.search(r"VmRSS:\\s+(\\d+)", status)[1]) * 1024, speed]))
"""


def measure(case: str, kv_bytes: int, max_model_len: int | None, speed: bool) -> dict[str, Any]:
    """Return the planned and resident bytes of one case, its planned and reached speed, errors."""
    model, dtype, quantization = case.split(":")
    fields: dict[str, Any] = {
        "load_format": "dummy",
        "dtype": dtype,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": kv_bytes,
    }
    if quantization:
        fields["quantization"] = quantization
    if max_model_len is not None:
        fields["max_model_len"] = max_model_len
    words = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "QUIRE_CACHE_DIR": folder}
        words += ["--measure"] * speed
        plan = json.loads(_run(environment, "-m", "quire", "plan", "--json", model, *words))
        if not plan["fits"]:
            sys.exit(
                f"{case}: the KV cache of --kv-mib {kv_bytes >> 20} holds {plan['tokens']} tokens, "
                f"fewer than the model's {plan['max_model_len']}. Raise it to "
                f"{-(-plan['max_model_len'] * plan['kv_bytes_per_token'] >> 20)}."
            )
        one, payload = plan["speed"][0], json.dumps({"model": model, **fields})
        context = min(one["context"], plan["max_model_len"] - OUTPUT_LEN)
        load = json.dumps([context, OUTPUT_LEN * speed])
        resident, tok_s = json.loads(_run(environment, "-c", _FILL, payload, load).splitlines()[-1])
    planned = plan["resident"]
    row = {
        "model": model,
        "dtype": dtype,
        "quantization": quantization or "none",
        "planned": planned,
        "resident": resident,
        "error": round(planned / resident - 1, 4),
    }
    if speed:
        row |= {"planned_tok_s": one["output_tok_s"], "tok_s": tok_s}
        row |= {"speed_error": round(one["output_tok_s"] / tok_s - 1, 4)}
    return row


def missed(row: dict[str, Any]) -> bool:
    """Return whether a case is beyond a bar."""
    config = preset_config(row["model"]) or {}
    experts = any("expert" in name for name in config)
    return (
        abs(row["error"]) > (EXPERTS_BAR if experts else BAR)
        or abs(row.get("speed_error", 0.0)) > SPEED_BAR
    )


def _run(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0 and not done.stdout:  # a plan that does not fit is printed, too
        sys.exit(done.stderr)
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--case", action="append", metavar="MODEL:DTYPE:QUANTIZATION")
    parser.add_argument("--kv-mib", type=int, default=256)
    parser.add_argument("--max-model-len", type=int, metavar="N", help="the model's own without")
    parser.add_argument("--speed", action="store_true", help="compare the speed, too")
    parser.add_argument("--json", type=jsonl, help="a .jsonl file, to append a row")
    args = parser.parse_args()
    given = args.kv_mib * 2**20, args.max_model_len, args.speed
    rows = [measure(case, *given) for case in args.case or CASES]
    print_grid("plan error", rows, sys.stdout)
    if args.json is not None:
        found = circumstances("plan_error", "python benchmarks/plan_error.py")
        write_json(args.json, {"cases": rows} | found)
    return int(any(map(missed, rows)))


if __name__ == "__main__":
    sys.exit(main())
