"""The flags of `quire bench serve`, with vLLM's names as aliases."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from quire.bench.flags import DEFAULT, count, start_timeout
from quire.bench.serving.datasets import ALIASES, DATASETS
from quire.bench.serving.slo import METRICS, PERCENTILES, VLLM_NAMES

_METRIC_NAMES = {name: name for name in METRICS} | VLLM_NAMES


def add(group: argparse._ArgumentGroup) -> None:
    """Add the flags of the server, the requests and their arrival."""
    add = group.add_argument
    add(
        "--base-url",
        metavar="URL",
        help="an OpenAI-compatible server, such as http://127.0.0.1:8000 (default: start "
        "`quire serve` with the engine flags, and stop it at the end)",
    )
    add("--endpoint", choices=["completions", "chat"], default="completions", help=DEFAULT)
    _add_dataset(group)
    _add_arrivals(group)
    add(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="generate all of --output-len; some servers need --no-ignore-eos",
    )
    start_timeout(group)


def _add_dataset(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--dataset-name",
        type=_dataset,
        default="random",
        metavar="NAME",
        help=f"the prompts: {', '.join(DATASETS)}. prefix_repetition (or prefix-shared): prompts "
        "with one of --num-prefixes; multi-turn: conversations with the model's own answers; "
        "sonnet: verse with a shared prefix; gsm8k: word problems (both written for Quire, similar "
        "to those data sets); sharegpt, custom, trace: a file " + DEFAULT,
    )
    add(
        "--dataset-path",
        type=Path,
        metavar="FILE",
        help="sharegpt: JSON of conversations; custom: one JSON object per line, with prompt and "
        "optionally output_tokens; trace: JSON lines or .csv, as in `quire simulate --trace`",
    )
    _number(
        group,
        "--num-prompts",
        "requests, including each turn of a conversation (default: 32; all of a trace)",
    )
    _number(
        *(
            group,
            "--input-len",
            "tokens of a prompt or turn, without a shared prefix; for sonnet, ",
        ),
        *("with it (default: 128; sonnet 550)",),
        aliases=("--random-input-len", "--sonnet-input-len", "--prefix-repetition-suffix-len"),
    )
    _number(
        *(
            group,
            "--output-len",
            "tokens of an answer (default: 64; sonnet 150, gsm8k 128; files their ",
        ),
        *("own)",),
        aliases=(
            *("--random-output-len", "--sonnet-output-len", "--prefix-repetition-output-len"),
            *("--sharegpt-output-len", "--custom-output-len"),
        ),
    )
    add(
        "--range-ratio",
        type=float,
        metavar="X",
        help="vary lengths by a factor between 1 - X and 1 + X (default: 0)",
    )
    _alias(group, "range_ratio", "--random-range-ratio", type=float)
    _number(
        *(group, "--num-prefixes", "prefixes of prefix_repetition (default: 4)"),
        aliases=("--prefix-repetition-num-prefixes",),
    )
    _number(
        *(group, "--prefix-len", "tokens of each prefix (default: 512; sonnet 200)"),
        aliases=("--prefix-repetition-prefix-len", "--sonnet-prefix-len"),
    )
    _number(group, "--num-turns", "turns of a multi-turn conversation (default: 4)")
    add(
        "--prompts",
        choices=["tokens", "text"],
        help="random token ids or common words (default: tokens; for chat, text)",
    )
    add(
        "--vocab-size",
        type=count,
        default=256,
        metavar="N",
        help="upper limit of random token ids; every vocabulary has the default " + DEFAULT,
    )


def _add_arrivals(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--num-clients",
        type=count,
        default=8,
        metavar="N",
        help="connections, which limit requests in flight " + DEFAULT,
    )
    _alias(group, "num_clients", "--max-concurrency", type=count)
    add(
        "--request-rate",
        type=float,
        default=float("inf"),
        metavar="R",
        help="requests per second; inf sends each as soon as a client is free " + DEFAULT,
    )
    add(
        "--request-rates",
        type=float,
        nargs="+",
        metavar="R",
        help="several rates, one row each; --plot-dir draws the curve",
    )
    add(
        "--burstiness",
        type=float,
        default=1.0,
        metavar="X",
        help="shape of the gamma distribution of the gaps between requests: 1 is a Poisson "
        "process, less is burstier " + DEFAULT,
    )
    add(
        "--ramp-up-strategy",
        choices=["linear", "exponential"],
        help="change the rate from the first request to the last, in equal steps or factors",
    )
    add("--ramp-up-start-rps", type=float, metavar="R", help="requests per second at the start")
    add("--ramp-up-end-rps", type=float, metavar="R", help="requests per second at the end")


def add_results(group: argparse._ArgumentGroup) -> None:
    """Add the flags that select what is reported."""
    add = group.add_argument
    add(
        "--slo",
        metavar="BOUNDS",
        help="latency limits such as ttft=0.5,tpot=50ms (also e2e, and itl for a request's p99); "
        "report goodput, the requests per second that meet all of them, and their share",
    )
    add(
        "--goodput",
        nargs="+",
        metavar="NAME:MS",
        help="the same in vLLM's spelling: ttft:500 tpot:50",
    )
    add(
        "--percentile-metrics",
        type=_metrics,
        default=METRICS,
        metavar="NAMES",
        help=f"(default: {','.join(METRICS)})",
    )
    add(
        "--metric-percentiles",
        type=_percentiles,
        default=PERCENTILES,
        metavar="P,…",
        help=f"(default: {','.join(f'{p:g}' for p in PERCENTILES)})",
    )


def _number(
    group: argparse._ArgumentGroup, flag: str, *text: str, aliases: tuple[str, ...] = ()
) -> None:
    """Add a count whose default depends on the data set."""
    group.add_argument(flag, type=count, metavar="N", help="".join(text))
    if aliases:
        _alias(group, flag.removeprefix("--").replace("-", "_"), *aliases, type=count)


def _alias(group: argparse._ArgumentGroup, dest: str, *names: str, **options: Any) -> None:
    """Add other spellings of a flag, hidden in the help."""
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    group.add_argument(*names, dest=dest, **hidden, **options)


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
