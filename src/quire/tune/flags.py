"""The flags of `quire tune`, and their checks."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs
from quire.resolve.flags import Flags, add_engine_flags

if TYPE_CHECKING:
    from quire.bench.serving.slo import Slo

LOAD = (
    *("dataset_name", "dataset_path", "num_prompts", "num_clients", "input_len", "output_len"),
    *("range_ratio", "num_prefixes", "prefix_len", "num_turns", "prompts", "vocab_size"),
    *("burstiness", "endpoint", "ignore_eos", "repetitions", "seed"),
)
"""Flags of `bench serve` that define the load."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add all flags to `parser`: objective, search, load and engine."""
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
    add(
        "--allow-quantization",
        False,
        "also try quantization and an int8 KV cache, which change the answers",
    )
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


def check(args: argparse.Namespace) -> tuple[argparse.Namespace, EngineArgs, Slo]:
    """Return the completed flags, the engine to start from, and the objective.

    Raises:
        ConfigError: a flag is wrong, or sets what tuning has to find.
    """
    from quire.bench.serving.datasets import complete
    from quire.bench.serving.slo import Slo
    from quire.tune.server import check_load

    if args.slo is None:
        raise ConfigError(
            "--slo is missing.", fix="Write for example --slo ttft=1,tpot=100ms.", param="--slo"
        )
    if args.base_url is not None:
        raise ConfigError(
            "--base-url names a running server, but tuning starts its own.", param="--base-url"
        )
    if math.isfinite(args.request_rate) or args.request_rates is not None:
        raise ConfigError(
            "Tuning finds the request rate itself.",
            fix="Leave out --request-rate and --request-rates.",
            param="--request-rate",
        )
    if args.output is not None and args.output.suffix not in (".toml", ".yaml", ".yml"):
        raise ConfigError("--output must end in .yaml or .toml.", param="--output")
    slo, given_clients = Slo.parse(args.slo), args.num_clients is not None
    start = EngineArgs.from_cli_args(args)
    changes = {"model": start.model, "num_clients": args.num_clients or 1}
    args = complete(argparse.Namespace(**(vars(args) | changes)))
    args.num_prompts = len(check_load(args))
    if not given_clients:
        args.num_clients = args.num_prompts
    return args, start, slo


def held_fields(names: list[str]) -> list[str]:
    from quire.core.registry import did_you_mean

    held = [name.strip().lstrip("-").replace("-", "_") for name in names]
    known = asdict(EngineArgs())
    for name in held:
        if name not in known:
            raise ConfigError(
                f"--hold {name}: unknown flag; {did_you_mean(name, known)}", param="--hold"
            )
    return held


def describe_load(args: argparse.Namespace) -> str:
    lengths = (
        f" of {args.input_len} and {args.output_len} tokens"
        if args.input_len and args.output_len
        else ""
    )
    return (
        f"{args.num_prompts} requests{lengths} (`{args.dataset_name}`), "
        f"at most {args.num_clients} at once"
    )


def plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _attainment(text: str) -> float:
    value = float(text)
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not in (0, 1]")
    return value
