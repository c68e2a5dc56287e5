"""`quire bench`: the flags of each benchmark, and what all of them do with the result."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from quire.core.flags import add_engine_flags
from quire.core.registry import Registry

BENCHMARKS = Registry(
    "benchmark",
    {
        "latency": "quire.bench.latency:run",
        "throughput": "quire.bench.throughput:run",
        "serve": "quire.bench.serve:run",
        "startup": "quire.bench.startup:run",
    },
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `latency`, `throughput`, `serve` and `startup` with their flags to `parser`."""
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCHMARK")
    for name, (text, add) in _FLAGS.items():
        bench = benches.add_parser(name, help=text, description=text)
        add(bench.add_argument_group("workload"))
        results = bench.add_argument_group("results")
        results.add_argument(
            "--repetitions", type=_count, default=3, metavar="N", help="(default: %(default)s)"
        )
        results.add_argument(
            "--json", type=Path, metavar="FILE", help="write the row there; append to a .jsonl file"
        )
        results.add_argument("--note", metavar="TEXT", help="kept in the row, for later readers")
        add_engine_flags(bench)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark, print its table, write its row; 1 if requests failed, else 0.

    Raises:
        QuireError: where the benchmark could not be run.
    """
    from quire.bench.machine import describe_machine, git_commit, portable_command
    from quire.bench.report import print_table, write_json

    row = BENCHMARKS.load(args.bench)(args)
    row = {
        **row,
        "bench": args.bench,
        "machine": describe_machine(),
        "commit": git_commit(),
        "command": portable_command(sys.argv[1:]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if args.note is not None:
        row["note"] = args.note
    print_table(f"bench {args.bench}", row, sys.stdout)
    if args.json is not None:
        write_json(args.json, row)
    return 1 if row["max"].get("errors") else 0


def _latency(group: argparse._ArgumentGroup) -> None:
    _lengths(group)
    group.add_argument("--batch-size", type=_count, default=1, metavar="N", help=_DEFAULT)


def _throughput(group: argparse._ArgumentGroup) -> None:
    _lengths(group)
    group.add_argument("--num-prompts", type=_count, default=64, metavar="N", help=_DEFAULT)


def _startup(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--input-len", type=_count, default=16, metavar="N", help=_DEFAULT)


def _serve(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--base-url",
        metavar="URL",
        help="an OpenAI-compatible server, such as http://127.0.0.1:8000 (default: start "
        "`quire serve` with the engine flags, and stop it at the end)",
    )
    add("--endpoint", choices=["completions", "chat"], default="completions", help=_DEFAULT)
    _lengths(group)
    add("--num-prompts", type=_count, default=32, metavar="N", help=_DEFAULT)
    add(
        "--num-clients",
        type=_count,
        default=8,
        metavar="N",
        help="connections, and so requests at once " + _DEFAULT,
    )
    add(
        "--request-rate",
        type=float,
        default=float("inf"),
        metavar="R",
        help="requests a second; inf sends each as soon as a client is free " + _DEFAULT,
    )
    add(
        "--burstiness",
        type=float,
        default=1.0,
        metavar="X",
        help="shape of the gamma distribution of the gaps between requests: 1 is a Poisson "
        "process, less is burstier " + _DEFAULT,
    )
    add(
        "--prompts",
        choices=["tokens", "text"],
        default="tokens",
        help="random token ids, or --input-len common words; chat always takes words " + _DEFAULT,
    )
    add(
        "--vocab-size",
        type=_count,
        default=256,
        metavar="N",
        help="random token ids are below this; every vocabulary has the default " + _DEFAULT,
    )
    add(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask for all of --output-len; a server that refuses the field needs --no-ignore-eos",
    )
    add(
        "--start-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="how long the server started here may take to be ready " + _DEFAULT,
    )


def _lengths(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--input-len", type=_count, default=128, metavar="N", help="prompt tokens " + _DEFAULT
    )
    group.add_argument(
        "--output-len", type=_count, default=64, metavar="N", help="tokens to generate " + _DEFAULT
    )


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


_DEFAULT = "(default: %(default)s)"
_FLAGS: dict[str, tuple[str, Callable[[argparse._ArgumentGroup], None]]] = {
    "latency": ("one batch offline: prefill, decode, and the share of the memory floor", _latency),
    "throughput": ("many prompts offline: tokens and requests a second", _throughput),
    "serve": ("many streaming clients of an OpenAI-compatible server", _serve),
    "startup": ("a fresh process to its first token, phase by phase", _startup),
}
