"""Writes results as `vllm bench serve --save-result` does, for scripts that read its files."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from quire.bench.machine import portable_name
from quire.bench.results.report import Row, percentile
from quire.bench.serving.sender import Outcome
from quire.bench.serving.vllm_flags import labels
from quire.bench.serving.waits import gaps, latencies, most_at_once


def save(args: argparse.Namespace, row: Row, outcomes: Sequence[Outcome]) -> Path:
    """Write the last repetition's numbers to a file, and return its path.

    Args:
        row: of the rate that was measured.
        outcomes: the requests of its last repetition.
    """
    now = datetime.now().strftime("%Y%m%d-%H%M%S")
    backend = args.backend or ("openai-chat" if args.endpoint == "chat" else "openai")
    rate = row["request_rate"]
    found = {
        "date": now,
        "endpoint_type": backend,
        "backend": backend,
        "label": backend,
        "model_id": row["model"],
        "tokenizer_id": row["model"],
        "num_prompts": len(outcomes),
        "request_rate": rate,
        "burstiness": args.burstiness,
        "max_concurrency": args.num_clients,
        **labels(args),
        **_numbers(outcomes, args.metric_percentiles),
    }
    if "goodput" in row:
        found["request_goodput"] = row["goodput"]
    if args.save_detailed:
        found |= _details(outcomes)
    name = args.result_filename or (
        f"{found['label']}-{rate}qps-concurrency{args.num_clients}-"
        f"{portable_name(str(row['model'])).replace('/', '-')}-{now}.json"
    )
    path = Path(args.result_dir) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if args.append_result else "w", encoding="utf-8") as file:
        if args.append_result and file.tell():
            file.write("\n")
        json.dump(found, file, allow_nan=False)
    return path


def _numbers(outcomes: Sequence[Outcome], percentiles: Sequence[float]) -> dict[str, Any]:
    good = [o for o in outcomes if o.error is None]
    seconds = max(o.end for o in outcomes) - min(o.sent for o in outcomes)
    prompts, answers = sum(o.prompt_tokens for o in good), sum(o.output_tokens for o in good)
    found: dict[str, Any] = {
        "duration": seconds,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": prompts,
        "total_output_tokens": answers,
        "request_throughput": len(good) / seconds,
        "output_throughput": answers / seconds,
        "total_token_throughput": (prompts + answers) / seconds,
        "max_concurrent_requests": most_at_once(outcomes),
    }
    for ours, values in latencies(good).items():
        name = "e2el" if ours == "e2e" else ours
        found[f"mean_{name}_ms"] = statistics.fmean(values) * 1e3 if values else 0.0
        found[f"median_{name}_ms"] = percentile(values, 0.5) * 1e3
        found[f"std_{name}_ms"] = statistics.pstdev(values) * 1e3 if values else 0.0
        for p in percentiles:
            found[f"p{p:g}_{name}_ms"] = percentile(values, p / 100) * 1e3
    return found


def _details(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    first = min(o.sent for o in outcomes)
    return {
        "input_lens": [o.prompt_tokens for o in outcomes],
        "output_lens": [o.output_tokens for o in outcomes],
        "ttfts": [o.ttft or 0.0 for o in outcomes],
        "itls": [gaps(o) for o in outcomes],
        "start_times": [o.sent - first for o in outcomes],
        "generated_texts": [o.text for o in outcomes],
        "errors": [o.error or "" for o in outcomes],
    }
