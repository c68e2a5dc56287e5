"""The flags of `quire tune`. The search is imported only when it starts."""

from __future__ import annotations

import argparse
from pathlib import Path

from quire.resolve.flags import Flags, add_engine_flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the objective's, the search's, the load's and the engine's flags to `parser`."""
    from quire.bench.serving import serve_flags
    from quire.bench.serving.slo import METRICS, PERCENTILES

    _add_objective(Flags(parser.add_argument_group("objective")))
    _add_search(Flags(parser.add_argument_group("search")))
    serve_flags.add_load(Flags(parser.add_argument_group("load, as in `quire bench serve`")))
    parser.set_defaults(
        num_clients=None,
        goodput=None,
        plot_dir=None,
        percentile_metrics=METRICS,
        metric_percentiles=PERCENTILES,
    )
    add_engine_flags(parser, positional=True)


def run(args: argparse.Namespace) -> int:
    """Search, and write the config file and the report."""
    from quire.tune.command import tune

    return tune(args)


def _add_objective(add: Flags) -> None:
    add(
        "--slo",
        None,
        "latency limits of a request in seconds or ms, such as ttft=0.5,tpot=50ms,e2e=10; itl "
        "limits the p99 of its gaps",
        metavar="BOUNDS",
    )
    text = "share of the requests that must meet the objective"
    add("--attainment", 0.95, text, type=_attainment, metavar="X")


def _add_search(add: Flags) -> None:
    add(
        "--method",
        "search",
        "search: measure the most promising configurations first, by the simulator's prediction, "
        "until no better one is expected. grid: every max-num-seqs with every "
        "max-num-batched-tokens, at rates that fall by one request per second, like vLLM's "
        "auto_tune script",
        choices=["search", "grid"],
    )
    add(
        "--space",
        [],
        "values of an engine flag to try, such as max-num-seqs=8,16,32 or "
        "max-num-batched-tokens=none,512; may be repeated",
        action="append",
        metavar="FIELD=V,…",
    )
    text = "engine flags that the search must not change"
    add("--hold", [], text, nargs="+", metavar="FIELD")
    text = "also try quantization and an int8 KV cache, which change the answers"
    add("--allow-quantization", False, text)
    add("--max-runs", 24, "maximum number of configurations to measure")
    add("--repetitions", 1, "loads per measurement; the median counts")
    add(
        "--study",
        None,
        "folder for measurements and report; run the command again with it to continue an "
        "interrupted search (default: tune-MODEL)",
        type=Path,
        metavar="DIR",
    )
    text = "the config file to write, .yaml or .toml (default: DIR/config.yaml)"
    add("--output", None, text, type=Path)


def _attainment(text: str) -> float:
    value = float(text)
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not in (0, 1]")
    return value
