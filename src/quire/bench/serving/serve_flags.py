"""The flags of `quire bench serve`, with vLLM's names as aliases."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from quire.bench.flags import start_timeout
from quire.bench.serving import vllm_flags
from quire.bench.serving.datasets import ALIASES, DATASETS
from quire.bench.serving.slo import METRICS, PERCENTILES, VLLM_NAMES
from quire.resolve.flags import Flags, count

_METRIC_NAMES = {name: name for name in METRICS} | VLLM_NAMES


def add_load(add: Flags) -> None:
    """Add the flags of the server, the requests and their arrival."""
    add(
        "--base-url",
        None,
        "an OpenAI-compatible server, such as http://127.0.0.1:8000 (default: start `quire serve` "
        "with the engine flags, and stop it at the end)",
        metavar="URL",
    )
    text = "completions or chat, or vLLM's paths of these"
    add("--endpoint", "completions", text, type=vllm_flags.endpoint, metavar="API")
    _add_dataset(add)
    _add_arrivals(add)
    add("--ignore-eos", True, "generate all of --output-len; some servers need --no-ignore-eos")
    start_timeout(add)


def _add_dataset(add: Flags) -> None:
    add(
        "--dataset-name",
        "random",
        f"the prompts: {', '.join(DATASETS)}. prefix_repetition (or prefix-shared): prompts with "
        "one of --num-prefixes; multi-turn: conversations with the model's own answers; sonnet: "
        "verse with a shared prefix; gsm8k: word problems (both written for Quire, similar to "
        "those data sets); sharegpt, custom, trace: a file",
        type=_dataset,
        metavar="NAME",
    )
    add(
        "--dataset-path",
        None,
        "sharegpt: JSON of conversations; custom: one JSON object per line, with prompt and "
        "optionally output_tokens; trace: JSON lines or .csv, as in `quire simulate --trace`",
        type=Path,
    )
    for flag, text, aliases in _COUNTS:
        add(flag, None, text, aliases, type=count)
    add(
        "--range-ratio",
        None,
        "vary lengths by a factor between 1 - X and 1 + X (default: 0)",
        "--random-range-ratio",
        type=float,
    )
    add(
        "--prompts",
        None,
        "random token ids or common words (default: tokens; for chat, text)",
        choices=["tokens", "text"],
    )
    text = "upper limit of random token ids; every vocabulary has the default"
    add("--vocab-size", 256, text)


_COUNTS = (
    (
        "--num-prompts",
        "requests, including each turn of a conversation (default: 32; all of a trace)",
        "",
    ),
    (
        "--input-len",
        "tokens of a prompt or turn; for sonnet, with the shared prefix (default: 128; sonnet 550)",
        "--random-input-len --sonnet-input-len --prefix-repetition-suffix-len",
    ),
    (
        "--output-len",
        "tokens of an answer (default: 64; sonnet 150, gsm8k 128; files their own)",
        " ".join(
            f"--{name}-output-len"
            for name in ("random", "sonnet", "prefix-repetition", "sharegpt", "custom")
        ),
    ),
    (
        "--num-prefixes",
        "prefixes of prefix_repetition (default: 4)",
        "--prefix-repetition-num-prefixes",
    ),
    (
        "--prefix-len",
        "tokens of each prefix (default: 512; sonnet 200)",
        "--prefix-repetition-prefix-len --sonnet-prefix-len",
    ),
    ("--num-turns", "turns of a multi-turn conversation (default: 4)", ""),
)
"""Counts whose default depends on the data set."""


def _add_arrivals(add: Flags) -> None:
    text = "connections, which limit requests in flight"
    add("--num-clients", 8, text, "--max-concurrency")
    text = "requests per second; inf sends each as soon as a client is free"
    add("--request-rate", math.inf, text, metavar="R")
    text = "several rates, one row each; --plot-dir draws the curve"
    add("--request-rates", None, text, type=float, nargs="+", metavar="R")
    add(
        "--burstiness",
        1.0,
        "shape of the gamma distribution of the gaps between requests: 1 is a Poisson process, "
        "less is burstier",
    )
    add(
        "--ramp-up-strategy",
        None,
        "change the rate from the first request to the last, in equal steps or factors",
        choices=["linear", "exponential"],
    )
    for which in ("start", "end"):
        text = f"requests per second at the {which}"
        add(f"--ramp-up-{which}-rps", None, text, type=float, metavar="R")


def add_serve(add: Flags) -> None:
    """Add the flags of `add_load`, and more of vLLM's."""
    add_load(add)
    vllm_flags.add_requests(add)


def add_results(add: Flags) -> None:
    """Add the flags that select what is reported."""
    add(
        "--slo",
        None,
        "latency limits such as ttft=0.5,tpot=50ms (also e2e, and itl for a request's p99); "
        "report goodput, the requests per second that meet all of them, and their share",
        metavar="BOUNDS",
    )
    text = "the same in vLLM's spelling: ttft:500 tpot:50"
    add("--goodput", None, text, nargs="+", metavar="NAME:MS")
    text = f"metrics whose percentiles are reported (default: {','.join(METRICS)})"
    add("--percentile-metrics", METRICS, text, type=_metrics, metavar="NAMES")
    text = f"which percentiles (default: {','.join(f'{p:g}' for p in PERCENTILES)})"
    add("--metric-percentiles", PERCENTILES, text, type=_percentiles, metavar="P,…")
    vllm_flags.add_results(add)


def _dataset(text: str) -> str:
    name = ALIASES.get(text, text)
    if name not in DATASETS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(DATASETS)}")
    return name


def _metrics(text: str) -> tuple[str, ...]:
    names = tuple(part.strip().lower() for part in text.split(","))
    if unknown := [name for name in names if name not in _METRIC_NAMES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(_METRIC_NAMES)}")
    return tuple(_METRIC_NAMES[name] for name in names)


def _percentiles(text: str) -> tuple[float, ...]:
    values = tuple(float(part) for part in text.split(","))
    if any(not 0.0 <= value <= 100.0 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} are not all between 0 and 100")
    return values
