"""`quire bench`: the benchmarks, and printing and storing their results."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType

from quire.bench import flags
from quire.bench.serving import serve_flags
from quire.core.errors import ConfigError
from quire.core.extras import check_output
from quire.resolve.flags import Flags, add_engine_flags

BENCHMARKS: dict[str, tuple[str, Callable[[Flags], None], str]] = {
    "latency": (
        "latency",
        flags.latency,
        "one batch offline: prefill, decode, and the share of the memory floor",
    ),
    "throughput": (
        "throughput",
        flags.throughput,
        "many prompts offline: tokens and requests per second",
    ),
    "serve": (
        "serving.serve",
        serve_flags.add_serve,
        "many streaming clients of an OpenAI-compatible server",
    ),
    "interference": (
        "serving.interference",
        flags.interference,
        "the wait of decoding streams while long prompts arrive",
    ),
    "startup": ("startup", flags.startup, "from process start to first token, phase by phase"),
    "kernels": (
        "kernels.command",
        flags.kernels,
        "single ops at the shapes of real models, against the machine's limits",
    ),
    "overhead": ("overhead", flags.overhead, "the time outside the model, over HTTP and offline"),
    "ablate": ("ablate", flags.ablate, "the gain of each optimisation, off and on in turns"),
    "compare": ("compare", flags.compare, "Quire and other engines on the same work, in turns"),
    "quality": ("quality", flags.quality, "perplexity and drift of dtypes and quantizations"),
}
"""Name → module, what adds the flags, and the help.

The module's `run` takes the parsed flags and returns a row or a list of rows. Its `print_result`,
if it has one, takes that and a stream.
"""
_DEFAULTS = {
    "overhead": {"model": "opt-125m", "load_format": "dummy", "dtype": "bfloat16"},
    "ablate": {"model": "opt-125m", "load_format": "dummy", "dtype": "bfloat16"},
    "compare": {"model": "opt-125m", "dtype": "bfloat16"},
}
"""Defaults of engine flags that differ in a benchmark."""
_SERVE_PICTURES = (
    "a histogram of ITL and a timeline of the requests; for several rates, throughput and latency"
)
_MANY_ENGINES = {"kernels", "quality"}
"""Benchmarks with their own flags instead of the engine's."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    benches = parser.add_subparsers(dest="bench", metavar="BENCHMARK")
    for name, (_, add, text) in BENCHMARKS.items():
        bench = benches.add_parser(name, help=text, description=text)
        add(Flags(bench.add_argument_group("workload")))
        results = Flags(bench.add_argument_group("results"))
        if name == "serve":
            serve_flags.add_results(results)
        if name != "quality":  # it measures no time
            text = "measurements; the table has their median"
            results("--repetitions", 9 if name == "kernels" else 3, text, "--num-iters")
        text = "write the rows there; append to a .jsonl file"
        results("--json", None, text, "--output-json", type=Path)
        drawn = _SERVE_PICTURES if name == "serve" else "each number, one bar per row"
        text = f"draw PNGs there: {drawn}; needs matplotlib"
        results("--plot-dir", None, text, type=Path, metavar="DIR")
        results("--note", None, "text to store in the row", metavar="TEXT")
        if name not in _MANY_ENGINES:
            add_engine_flags(bench, _DEFAULTS.get(name))


def run(args: argparse.Namespace) -> int:
    """Run the benchmark, print its table, write its rows; return 1 if requests failed, else 0.

    Raises:
        QuireError: no benchmark is named, or it could not run.
    """
    if args.bench is None:
        raise ConfigError(f"Name a benchmark: {', '.join(BENCHMARKS)}.", param="bench")
    from quire.bench.machine import circumstances
    from quire.bench.results import overview, plots
    from quire.bench.results.report import print_grid, print_table, write_json

    if args.plot_dir is not None:
        plots.check(args.plot_dir)
    check_output(args.json, "--json")
    with cleaning_up_when_terminated():
        bench = import_module(f"quire.bench.{BENCHMARKS[args.bench][0]}")
        result = bench.run(args)
    found = circumstances(args.bench)
    if args.note is not None:
        found["note"] = args.note
    many = isinstance(result, list)
    rows = [row | found for row in (result if many else [result])]
    if hasattr(bench, "print_result"):
        bench.print_result(result, sys.stdout)
    elif many:
        print_grid(f"bench {args.bench}", rows, sys.stdout)
    else:
        print_table(f"bench {args.bench}", rows[0], sys.stdout)
    if args.json is not None:
        write_json(args.json, rows if many else rows[0])
    if args.plot_dir is not None and args.bench != "serve":  # serve draws its own
        overview.draw(args.plot_dir, args.bench, rows)
    return 1 if any(row.get("max", {}).get("errors") for row in rows) else 0


@contextmanager
def cleaning_up_when_terminated() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that no server or peer outlives the benchmark.

    Only the first one: `timeout` sends two, and the second would end the cleaning up.
    """

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
