"""The flags of `quire bench serve`: vLLM's names or as aliases."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from quire.bench.datasets import ALIASES, DATASETS
from quire.bench.flags import DEFAULT, count, start_timeout
from quire.bench.slo import METRICS, PERCENTILES, VLLM_NAMES

_METRIC_NAMES = {name: name for name in METRICS} | VLLM_NAMES


def add(group: argparse._ArgumentGroup) -> None:
    """The server, what it is asked, and when."""
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
        help="ask for all of --output-len; a server that refuses the field needs --no-ignore-eos",
    )
    start_timeout(group)


def _add_dataset(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--dataset-name",
        type=_dataset,
        default="random",
        metavar="NAME",
        help=f"what is asked: {', '.join(DATASETS)}. prefix_repetition (or prefix-shared): prompts "
        "begin with one of --num-prefixes; multi-turn: conversations in which real answers are "
        "fed back; sonnet: verse with a shared beginning; gsm8k: word problems (both written for "
        "Quire, in the likeness of those data sets); sharegpt, custom, trace: a file " + DEFAULT,
    )
    add(
        "--dataset-path",
        type=Path,
        metavar="FILE",
        help="sharegpt: JSON of conversations; custom: a line of JSON each, prompt and perhaps "
        "output_tokens; trace: a line of JSON each, or .csv, as `quire simulate --trace` reads it",
    )
    _number(
        group,
        "--num-prompts",
        "requests, each turn of a conversation counted (default: 32; all of a trace)",
    )
    _number(
        *(
            group,
            "--input-len",
            "tokens of a prompt, without a shared prefix; of a turn; of sonnet ",
        ),
        *("in all (default: 128; sonnet 550)",),
        aliases=("--random-input-len", "--sonnet-input-len", "--prefix-repetition-suffix-len"),
    )
    _number(
        *(
            group,
            "--output-len",
            "tokens of an answer (default: 64; sonnet 150, gsm8k 128; those of ",
        ),
        *("the file)",),
        aliases=(
            *("--random-output-len", "--sonnet-output-len", "--prefix-repetition-output-len"),
            *("--sharegpt-output-len", "--custom-output-len"),
        ),
    )
    add(
        "--range-ratio",
        type=float,
        metavar="X",
        help="lengths lie between 1 - X and 1 + X of these (default: 0)",
    )
    _alias(group, "range_ratio", "--random-range-ratio", type=float)
    _number(
        *(group, "--num-prefixes", "of prefix_repetition (default: 4)"),
        aliases=("--prefix-repetition-num-prefixes",),
    )
    _number(
        *(group, "--prefix-len", "tokens of each prefix (default: 512; sonnet 200)"),
        aliases=("--prefix-repetition-prefix-len", "--sonnet-prefix-len"),
    )
    _number(group, "--num-turns", "of a conversation of multi-turn (default: 4)")
    add(
        "--prompts",
        choices=["tokens", "text"],
        help="of random numbers: token ids or common words (default: tokens; chat takes words)",
    )
    add(
        "--vocab-size",
        type=count,
        default=256,
        metavar="N",
        help="random token ids are below this; every vocabulary has the default " + DEFAULT,
    )


def _add_arrivals(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--num-clients",
        type=count,
        default=8,
        metavar="N",
        help="connections, and so requests at once " + DEFAULT,
    )
    _alias(group, "num_clients", "--max-concurrency", type=count)
    add(
        "--request-rate",
        type=float,
        default=float("inf"),
        metavar="R",
        help="requests a second; inf sends each as soon as a client is free " + DEFAULT,
    )
    add(
        "--request-rates",
        type=float,
        nargs="+",
        metavar="R",
        help="several, one after another: a row each, and the curve of --plot-dir",
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
        help="let the rate grow from the first request to the last, by equal steps or factors",
    )
    add("--ramp-up-start-rps", type=float, metavar="R", help="requests a second at the beginning")
    add("--ramp-up-end-rps", type=float, metavar="R", help="and at the end")


def add_results(group: argparse._ArgumentGroup) -> None:
    """What to say about it."""
    add = group.add_argument
    add(
        "--slo",
        metavar="BOUNDS",
        help="such as ttft=0.5,tpot=50ms (also itl, of which a request's p99 counts, and e2e): "
        "adds goodput, the requests a second that kept to all, and their share",
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
    """A count without a default of its own; data sets have theirs."""
    group.add_argument(flag, type=count, metavar="N", help="".join(text))
    if aliases:
        _alias(group, flag.removeprefix("--").replace("-", "_"), *aliases, type=count)


def _alias(group: argparse._ArgumentGroup, dest: str, *names: str, **options: Any) -> None:
    """Other spellings of a flag, which help does not show."""
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
