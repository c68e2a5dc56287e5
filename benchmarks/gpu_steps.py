"""Where the time of one stream's decode step goes on a GPU, and vLLM's step; for `gpu_bars`.

`steps` loads one engine. Each variant changes how its kernels are launched, and records the step
anew. A row has the step's time by the host's clock and that of its graph alone: their difference is
the host and what is queued between two graphs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import torch
from gpu_models import GIVEN, Row, decode, opened

from quire.bench.latency import timings
from quire.bench.peers.driver import Options, Work
from quire.core.outputs import RequestMetrics
from quire.ops.triton import attention, linear

VARIANTS: dict[str, list[tuple[Any, str, Any]]] = {
    "as it is": [],
    "weights not ahead": [(linear, "AHEAD_BYTES", 0)],
    "keys not ahead": [(attention, "AHEAD", False)],
    "nothing ahead": [(linear, "AHEAD_BYTES", 0), (attention, "AHEAD", False)],
    "4 MiB ahead": [(linear, "AHEAD_BYTES", 1 << 22)],
    "32 MiB ahead": [(linear, "AHEAD_BYTES", 1 << 25)],
    "segments of 128 keys": [(attention, "SEGMENT", 128)],
    "segments of 256 keys": [(attention, "SEGMENT", 256)],
}
"""Name → module, constant and its value. Those about what is ahead change no bit."""
REPLAYS = 100


@contextmanager
def changed(changes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Let the next launches use these constants."""
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    try:
        for module, name, value in changes:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def steps(card: str, bytes_per_second: float, *, real: bool) -> Iterator[Row]:
    """Yield a row of each variant of a 1B model's step; of a small one's where there is no card."""
    small = {"device": "cpu", "ops": "reference", "max_model_len": 64, "num_threads": 1}
    name, fields = ("llama-3.2-1b", GIVEN) if real else ("embedded", small)
    with opened(name, fields) as (llm, engine):
        runner: Any = llm._core.executor._worker._runner  # type: ignore[attr-defined]
        for variant, changes in VARIANTS.items() if real else [*VARIANTS.items()][:2]:
            with changed(changes):
                getattr(runner.model, "_recorded", {}).clear()
                found = decode(engine, 1, *((128, 128) if real else (4, 8)), bytes_per_second)
                known = {"card": card, "model": name, "form": "bf16", "variant": variant}
                graphs = [*getattr(runner.model, "_recorded", {}).values()]
                replay = {"graph_ms": replayed(graphs[0].graph)} if graphs else {}
                yield known | found | {"what": f"step, {variant}"} | replay


def replayed(graph: Any) -> float:
    """Return milliseconds of one replay, by the card's clock."""
    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / REPLAYS)
    return statistics.median(times)


def beside(card: str, *, real: bool) -> Iterator[Row]:
    """Yield vLLM's rates at the loads of `models`, if `VLLM_PYTHON` or this Python has it."""
    python = os.environ.get("VLLM_PYTHON") or (sys.executable if find_spec("vllm") else None)
    if python is None or not real:
        yield {"what": "vLLM", "card": card, "error": "VLLM_PYTHON names no Python that has it"}
        return
    for name in ("llama-3.2-1b", "llama-3.1-8b"):
        yield from _vllm(python, card, name)


def _vllm(python: str, card: str, model: str) -> Iterator[Row]:
    options = Options(model, "bfloat16", None, 1, 0, 1024, 256, "")
    command = [python, "-m", "quire.bench.peers.vllm_cpu", json.dumps(asdict(options))]
    works = [Work(*load, [i]) for i in range(3) for load in ((1, 128, 128), (256, 64, 64))]
    asked = "".join(json.dumps(asdict(work)) + "\n" for work in works)
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    ready, *answers = done.stdout.splitlines() or [""]
    if done.returncode or len(answers) != len(works):
        yield {"what": f"vLLM {model}", "card": card, "error": done.stderr[-500:]}
        return
    for first in range(2):
        rates = []
        for work, line in [*zip(works, answers, strict=True)][2 + first :: 2]:  # 0 warms up
            metrics = [RequestMetrics(**each) for each in json.loads(line)["requests"]]
            rates.append(timings(metrics, work.input_len, work.output_len)["decode_tok_s"])
        work = works[first]
        yield {
            "what": f"decode {work.count} x {work.input_len} + {work.output_len}", "card": card,
            "model": model, "form": "bf16", "engine": json.loads(ready)["engine"],
            "tok_s": statistics.median(rates), "range": [min(rates), max(rates)],
        }  # fmt: skip
