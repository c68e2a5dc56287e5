"""`quire bench`: what can be measured, and what all benchmarks do with the result."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from quire.bench import choices
from quire.core.flags import add_config_flag, add_engine_flags
from quire.bench import flags, serve_flags
from quire.core.flags import add_engine_flags
from quire.core.registry import Registry

BENCHMARKS = Registry(
    "benchmark",
    {
        "latency": "quire.bench.latency:run",
        "throughput": "quire.bench.throughput:run",
        "serve": "quire.bench.serve:run",
        "interference": "quire.bench.interference:run",
        "startup": "quire.bench.startup:run",
        "kernels": "quire.bench.kernels.command:run",
        "quality": "quire.bench.quality:run",
        "overhead": "quire.bench.overhead:run",
        "ablate": "quire.bench.ablate:run",
    },
)
"""Each takes the parsed flags and gives a row, or a list of rows."""
_PRINTERS = Registry(
    "table",
    {
        "serve": "quire.bench.serve:print_result",
        "overhead": "quire.bench.overhead:print_result",
    },
)
"""Of results that are not shown as all others: what `run` gave, and where to print."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every benchmark with its flags to `parser`."""
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCHMARK")
    for name, (text, add) in _FLAGS.items():
        bench = benches.add_parser(name, help=text, description=text)
        add(bench.add_argument_group("workload"))
        results = bench.add_argument_group("results")
        if name == "serve":
            serve_flags.add_results(results)
        if name != "quality":  # it counts no time
            repetitions = 9 if name == "kernels" else 3
            results.add_argument(
                "--repetitions",
                type=flags.count,
                default=repetitions,
                metavar="N",
                help=flags.DEFAULT,
            )
        results.add_argument(
            "--json",
            type=Path,
            metavar="FILE",
            help="write the rows there; append to a .jsonl file",
        )
        results.add_argument("--note", metavar="TEXT", help="kept in the row, for later readers")
        if name not in _MANY_ENGINES:
            add_config_flag(bench)
            add_engine_flags(bench, defaults=_DEFAULTS.get(name))


def run(args: argparse.Namespace) -> int:
    """Run the benchmark, print its table, write its rows; 1 if requests failed, else 0.

    Raises:
        QuireError: where the benchmark could not be run.
    """
    from quire.bench.machine import describe_machine, git_commit, portable_command
    from quire.bench.report import print_grid, print_table, write_json

    result = BENCHMARKS.load(args.bench)(args)
    circumstances = {
        "bench": args.bench,
        "machine": describe_machine(),
        "commit": git_commit(),
        "command": portable_command(sys.argv[1:]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if args.note is not None:
        circumstances["note"] = args.note
    many = isinstance(result, list)
    rows = [row | circumstances for row in (result if many else [result])]
    if args.bench in _PRINTERS.names():
        _PRINTERS.load(args.bench)(result, sys.stdout)
    elif many:
        print_grid(f"bench {args.bench}", rows, sys.stdout)
    else:
        print_table(f"bench {args.bench}", rows[0], sys.stdout)
    if args.json is not None:
        write_json(args.json, rows if many else rows[0])
    return 1 if any(row.get("max", {}).get("errors") for row in rows) else 0


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
    _start_timeout(group)


def _start_timeout(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--start-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="how long the server started here may take to be ready " + _DEFAULT,
    )


def _overhead(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--streams",
        type=_count,
        nargs="+",
        default=[1, 8, 32, 128],
        metavar="N",
        help="at once; one measurement each (default: 1 8 32 128)",
    )
    add("--input-len", type=_count, default=16, metavar="N", help="prompt tokens " + _DEFAULT)
    add("--output-len", type=_count, default=128, metavar="N", help="of a stream " + _DEFAULT)
    _start_timeout(group)


def _interference(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--num-streams",
        type=_count,
        default=8,
        metavar="N",
        help="requests that decode all the while " + _DEFAULT,
    )
    add("--input-len", type=_count, default=128, metavar="N", help="a stream's prompt " + _DEFAULT)
    add(
        "--idle-tokens",
        type=_count,
        default=64,
        metavar="N",
        help="tokens of each stream before the first arrival and after the last, as the measure "
        + _DEFAULT,
    )
    add(
        "--num-arrivals",
        type=_count,
        default=2,
        metavar="N",
        help="prompts that arrive, each when the one before has its token " + _DEFAULT,
    )
    add("--arrival-len", type=_count, default=4096, metavar="N", help="their tokens " + _DEFAULT)
    add(
        "--budgets",
        nargs="+",
        type=_budget,
        metavar="N",
        help="values of --max-num-batched-tokens to compare, a row each; `auto` is the engine's "
        "choice (default: what --max-num-batched-tokens says)",
    )


def _kernels(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--model",
        nargs="+",
        default=["qwen3-0.6b"],
        help="presets or models whose shapes to take (default: qwen3-0.6b)",
    )
    add("--op", nargs="+", choices=KERNEL_FAMILIES, help="families of operations (default: all)")
    add(
        "--rows",
        type=_count,
        nargs="+",
        default=[1, 4, 16, 64, 512],
        metavar="N",
        help="tokens of a step; sequences, where attention decodes (default: 1 4 16 64 512)",
    )
    add(
        "--context",
        type=_count,
        nargs="+",
        default=[256, 2048],
        metavar="N",
        help="tokens of a sequence, where attention decodes (default: 256 2048)",
    )
    add("--isa", nargs="+", metavar="NAME", help="instruction sets (default: the most capable)")
    choices.add_flags(group, dtype=["bfloat16"])
    add("--num-threads", type=_count, metavar="N", help="(default: one a core)")
    add("--block-size", type=_count, default=16, metavar="N", help="of the KV cache " + _DEFAULT)
    add(
        "--max-num-seqs",
        type=_count,
        default=64,
        metavar="N",
        help="most rows of logits, and most decoding sequences, to measure " + _DEFAULT,
    )
    add("--torch", action="store_true", help="time what torch has for it beside each operation")
    add(
        "--seconds",
        type=float,
        default=0.03,
        metavar="S",
        help="of a repetition; one call at least " + _DEFAULT,
    )
    add("--seed", type=int, default=0, metavar="N", help=_DEFAULT)


def _ablate(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--switch", nargs="+", choices=ABLATIONS, default=ABLATIONS, help="(default: all)")
    _lengths(group)
    add(
        "--num-streams", type=_count, default=8, metavar="N", help="that decode at once " + _DEFAULT
    )
    add(
        "--prefix-len",
        type=_count,
        default=1024,
        metavar="N",
        help="tokens of a shared prefix, and of a long prompt " + _DEFAULT,
    )


def _quality(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--model",
        nargs="+",
        default=["embedded", "embedded-draft"],
        help="built-in names, folders, files or hub ids (default: embedded embedded-draft)",
    )
    add(
        "--text",
        type=Path,
        metavar="FILE",
        help="to predict, blank lines between documents (default: stories that come with Quire)",
    )
    choices.add_flags(group)
    add("--num-threads", type=_count, metavar="N", help="(default: the engine's choice)")


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


def _budget(text: str) -> str:
    return text if text == "auto" else str(_count(text))


_DEFAULT = "(default: %(default)s)"
_FLAGS: dict[str, tuple[str, Callable[[argparse._ArgumentGroup], None]]] = {
    "latency": (
        "one batch offline: prefill, decode, and the share of the memory floor",
        flags.latency,
    ),
    "throughput": ("many prompts offline: tokens and requests a second", flags.throughput),
    "serve": ("many streaming clients of an OpenAI-compatible server", serve_flags.add),
    "interference": (
        "streams that decode while long prompts arrive: who waits",
        flags.interference,
    ),
    "startup": ("a fresh process to its first token, phase by phase", flags.startup),
    "kernels": (
        "single operations at the shapes of real models, against their limits",
        flags.kernels,
    ),
    "overhead": ("the time that is not the model's, over HTTP and offline", flags.overhead),
    "ablate": ("every optimisation off and on, and what it gains", flags.ablate),
    "quality": ("perplexity and drift of every combination of types", flags.quality),
}
_DEFAULTS = {
    "overhead": {"model": "opt-125m", "load_format": "dummy", "dtype": "bfloat16"},
    "ablate": {"model": "opt-125m", "load_format": "dummy", "dtype": "bfloat16"},
}
"""Of the engine's flags, where a benchmark asks for something else."""
_MANY_ENGINES = {"kernels", "quality"}
"""Have flags of their own in place of the engine's."""
