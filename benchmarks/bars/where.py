"""Where the time of a load goes, op by op, with the machine's limit for each.

`python -m benchmarks.bars.where JSON` prints a row, in its own process.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from benchmarks.bars.bar import Against, Floor
from benchmarks.bars.measure import BLOCK_SIZE, run_module
from quire.bench.results.report import Row
from quire.bench.serving.workload import token_prompts
from quire.core.config import STEP_TOKENS
from quire.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from quire.frontend.llm import LLM
    from quire.profile.layerwise import LayerwiseResults


def measure(subject: Floor | Against, seed: int = 0) -> Row:
    """Profile a bar's load in a fresh process, right after measuring the machine's limits.

    For decode, the prompts are in the prefix cache, except for their last block.

    Returns:
        `step_ms` (mean), `limit_ms` (time of a step's ops at the limits), `of_limit` (their ratio),
        `steps`, `bandwidth_gb_s`, and `parts`, the costliest first: `name`, `ms`, `limit_ms` and
        `of_limit` (both None for a part that is not an op).

    Raises:
        QuireError: the profile failed.
    """
    load, task = subject.load, subject.task if isinstance(subject, Against) else "decode"
    decode_only = task == "decode"
    whole = max(STEP_TOKENS, load.count * load.input_len) if decode_only else None
    fields = subject.setup.fields() | {
        "seed": seed,
        "max_model_len": load.max_len,
        "max_num_seqs": load.count,
        "max_num_batched_tokens": whole,
        # Warm-up prompts must not take blocks from the profiled ones.
        "num_gpu_blocks_override": 2 * load.num_blocks(BLOCK_SIZE),
    }
    output_len = 1 if task == "prefill" else load.output_len
    asked = {"fields": fields, "decode_only": decode_only}
    asked["load"] = [load.count, load.input_len, output_len]
    row: Row = json.loads(run_module("benchmarks.bars.where", json.dumps(asked)).splitlines()[-1])
    return row


def summary(results: LayerwiseResults) -> Row:
    """Return the result of `measure` for a profile with the machine's limits."""
    seen = results.profile
    per_step = 1e3 / seen.steps
    least = sum(node.least_seconds or 0.0 for node in results.summary)
    parts: list[Row] = [
        {
            "name": node.name,
            "ms": node.seconds * per_step,
            "limit_ms": (node.least_seconds or 0.0) * per_step,
            "of_limit": node.of_limit,
        }
        for node in results.summary
    ]
    step = results.model.children
    rest = {"between ops": step["model"].children["python"]}
    rest |= {name: step[name] for name in ("prepare", "sample", "other")}
    parts += [
        {"name": name, "ms": node.seconds * per_step, "limit_ms": None, "of_limit": None}
        for name, node in rest.items()
    ]
    return {
        "step_ms": seen.wall_seconds * per_step,
        "limit_ms": least * per_step,
        "of_limit": least / seen.wall_seconds,
        "steps": seen.steps,
        "parts": sorted(parts, key=lambda part: -part["ms"]),
    }


def main(asked: dict[str, Any]) -> None:
    """Profile the load of `measure`, and print the row."""
    from quire.bench.kernels.limits import measure as measure_limits
    from quire.frontend.llm import LLM
    from quire.profile.layerwise import layerwise_profile

    limits = measure_limits()
    count, input_len, output_len = asked["load"]
    with LLM(**asked["fields"]) as llm:
        threads, vocab = llm.resolved.config.num_threads, llm.model_config.vocab_size
        warm_up, prompts = (token_prompts(count, input_len, vocab, [0, i]) for i in range(2))
        _generate(llm, prompts if asked["decode_only"] else warm_up, 1)
        with layerwise_profile(llm, limits, threads) as profile:
            _generate(llm, prompts, output_len)
    row = summary(profile.results) | {"bandwidth_gb_s": limits.bandwidth_of(threads) / 1e9}
    print(json.dumps(row))


def _generate(llm: LLM, prompts: list[list[int]], output_len: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
