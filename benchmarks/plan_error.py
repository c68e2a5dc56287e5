"""How far `quire plan` is from the memory that an engine holds once its KV cache is full.

    python benchmarks/plan_error.py [--case MODEL:DTYPE:QUANTIZATION] … [--kv-mib 256] [--json FILE]

Each case plans, then starts an engine with random weights in a process of its own, fills its KV
cache with eight prompts, and reads the resident bytes. The bar is 10 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from quire.bench.machine import circumstances
from quire.bench.results.report import print_grid, write_json

CASES = (
    "opt-125m:bfloat16:",
    "gpt2:float32:",
    "qwen3-0.6b:bfloat16:fp8",
    "tinyllama-1.1b:bfloat16:int4",
    "llama-3.2-1b:bfloat16:q4_k",
    "gemma-3-1b:bfloat16:int8",
)
BAR = 0.10
_FILL = """
import json, re, sys
from pathlib import Path
from quire import LLM, SamplingParams

llm = LLM(**json.loads(sys.argv[1]))
length = min(llm.facts["num_blocks"] * 16 // 8, 2048) - 8
prompts = [{"prompt_token_ids": [7 + n] * length} for n in range(8)]
llm.generate(prompts, SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
status = Path("/proc/self/status").read_text()
print(int(re.search(r"VmRSS:\\s+(\\d+)", status)[1]) * 1024)
"""


def measure(case: str, kv_bytes: int) -> dict[str, Any]:
    """Planned and resident bytes of one case, and the error."""
    model, dtype, quantization = case.split(":")
    fields: dict[str, Any] = {
        "load_format": "dummy",
        "dtype": dtype,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": kv_bytes,
    }
    if quantization:
        fields["quantization"] = quantization
    words = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "QUIRE_CACHE_DIR": folder}
        plan = json.loads(_run(environment, "-m", "quire", "plan", "--json", model, *words))
        payload = json.dumps({"model": model, **fields})
        resident = int(_run(environment, "-c", _FILL, payload).splitlines()[-1])
    planned = plan["resident"]
    return {
        "model": model,
        "dtype": dtype,
        "quantization": quantization or "none",
        "planned": planned,
        "resident": resident,
        "error": round(planned / resident - 1, 4),
    }


def _run(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(done.stderr)
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--case", action="append", metavar="MODEL:DTYPE:QUANTIZATION")
    parser.add_argument("--kv-mib", type=int, default=256)
    parser.add_argument("--json", type=Path, help="a .jsonl file, to append a row")
    args = parser.parse_args()
    rows = [measure(case, args.kv_mib * 2**20) for case in args.case or CASES]
    print_grid("plan error", rows, sys.stdout)
    if args.json is not None:
        found = circumstances("plan_error", "python benchmarks/plan_error.py")
        write_json(args.json, {"cases": rows} | found)
    return int(any(abs(row["error"]) > BAR for row in rows))


if __name__ == "__main__":
    sys.exit(main())
