"""`quire tune`: find the configuration that serves the most requests under an objective."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.core.config import EngineArgs
from quire.core.errors import ConfigError, QuireError
from quire.core.flags import add_config_flag, add_engine_flags, engine_args_from

if TYPE_CHECKING:
    from quire.bench.slo import Slo
    from quire.tune.report import Facts
    from quire.tune.search import Result, Trial
    from quire.tune.space import Configuration

_LOAD = (
    *("dataset_name", "dataset_path", "num_prompts", "num_clients", "input_len", "output_len"),
    *("range_ratio", "num_prefixes", "prefix_len", "num_turns", "prompts", "vocab_size"),
    *("burstiness", "endpoint", "ignore_eos", "repetitions", "seed"),
)
"""Flags of `bench serve` that make the load."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the objective's, the search's, the load's and the engine's flags to `parser`."""
    from quire.bench import serve_flags
    from quire.bench.slo import METRICS, PERCENTILES

    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="the same as --model")
    _add_objective(parser.add_argument_group("objective"))
    _add_search(parser.add_argument_group("search"))
    serve_flags.add(parser.add_argument_group("load, as of `quire bench serve`"))
    parser.set_defaults(
        num_clients=None,
        goodput=None,
        plot_dir=None,
        percentile_metrics=METRICS,
        metric_percentiles=PERCENTILES,
    )
    add_config_flag(parser)
    add_engine_flags(parser)


def _add_objective(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--slo",
        metavar="BOUNDS",
        help="what a request may wait for, such as ttft=0.5,tpot=50ms,e2e=10; also itl, of which "
        "a request's p99 counts",
    )
    group.add_argument(
        "--attainment",
        type=_attainment,
        default=0.95,
        metavar="X",
        help="share of the requests that has to keep to it (default: %(default)s)",
    )


def _add_search(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--method",
        choices=["search", "grid"],
        default="search",
        help="search: what the simulator expects most of comes first, until nothing better is to "
        "be expected; grid: every max-num-seqs with every max-num-batched-tokens, at rates that "
        "fall by one request a second, as vLLM's auto_tune script does (default: %(default)s)",
    )
    add(
        "--space",
        action="append",
        default=[],
        metavar="FIELD=V,…",
        help="values of an engine flag to try, such as max-num-seqs=8,16,32 or "
        "max-num-batched-tokens=none,512; may be repeated",
    )
    add(
        "--hold",
        nargs="+",
        default=[],
        metavar="FIELD",
        help="engine flags to leave as they are; the others are where the search starts",
    )
    add(
        "--allow-quantization",
        action="store_true",
        help="try types that change what the model says: quantization, and a KV cache of int8",
    )
    add(
        "--max-runs",
        type=_count,
        default=24,
        metavar="N",
        help="configurations that a search measures at most (default: %(default)s)",
    )
    add(
        "--repetitions",
        type=_count,
        default=1,
        metavar="N",
        help="loads of a measurement, of which the medians count (default: %(default)s)",
    )
    add(
        "--study",
        type=Path,
        metavar="DIR",
        help="where the measurements are kept, and the report; started again with it, a search "
        "goes on where it was (default: tune-MODEL)",
    )
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="the config file to write, .yaml or .toml (default: DIR/config.yaml)",
    )


def run(args: argparse.Namespace) -> int:
    """Search, and write the config file and the report; 1 where nothing keeps to the objective.

    Raises:
        ConfigError: a flag is wrong.
        QuireError: the start cannot be measured.
    """
    tuning = _Tuning(args)
    try:
        result, _ = tuning.run()
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from here.", file=sys.stderr)
        raise
    finally:
        tuning.study.close()
    return 0 if result.best is not None else 1


class _Tuning:
    """One run of the command.

    Raises:
        ConfigError: a flag is wrong.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        from quire.bench.machine import portable_name
        from quire.core.hardware import detect
        from quire.tune import space
        from quire.tune.server import ServerBench
        from quire.tune.study import Study

        self.args, self.start, self.slo = _check(args)
        self.hardware = detect()
        given = space.parse_space(args.space)
        held = _held(args.hold)
        self.searched = args.method == "search"
        if self.searched:
            self.space = space.search_space(
                self.start,
                self.hardware.cores,
                given=given,
                held=held,
                lossy=args.allow_quantization,
            )
        else:
            self.space = space.grid_space(given)
        self.finds_memory = self.searched and not {*held, *given} & set(space.MEMORY)
        folder: Path = args.study or Path(f"tune-{portable_name(self.start.model)}")
        self.folder = folder
        self.output: Path = args.output or folder / "config.yaml"
        self.real = ServerBench(self.args, self.start)
        settings = {
            "start": asdict(self.start),
            "load": {name: _plain(getattr(self.args, name)) for name in _LOAD},
            "objective": [str(self.slo), args.attainment, args.method],
        }
        self.study = Study(folder, settings, self.space)
        if self.study.resumed:
            _say(f"Going on in {folder}: {self.study.resumed} measurements are there.")

    def run(self) -> tuple[Result, Facts]:
        """Search, verify, write."""
        from quire.tune.space import start_of

        share = self._memory_share() if self.finds_memory else None
        start = start_of(self.start, self.space)
        result = self._search(start, share) if self.searched else self._grid(start)
        facts = self._facts(result, share)
        self._write(result, facts)
        return result, facts

    def _memory_share(self) -> float | None:
        from quire.tune.memory import largest_share

        share: float | None = self.study.note("share")
        if share is None:
            _say("Looking for the largest memory share that boots …")
            share = largest_share(self.args, self.start)
            self.study.keep("share", share)
        if share is not None:
            _say(f"The engine boots with {share:.0%} of the memory.")
            values = self.space["gpu_memory_utilization"]
            self.space["gpu_memory_utilization"] = list(dict.fromkeys([*values, share]))
        return share

    def _search(self, start: Configuration, share: float | None) -> Result:
        from quire.tune.predict import Simulator
        from quire.tune.search import Search
        from quire.tune.server import workload_at

        simulator = Simulator(
            self.start,
            self.hardware,
            lambda rate: workload_at(self.args, rate),
            self.args.num_clients,
            self.slo,
            self.args.attainment,
        )
        return Search(
            self.space,
            start,
            self.study.bench(self.real),
            simulator,
            attainment=self.args.attainment,
            max_runs=self.args.max_runs,
            why_not=self._why_not,
            told=self._told(start),
        ).run()

    def _grid(self, start: Configuration) -> Result:
        from quire.tune.search import grid

        return grid(
            self.space,
            start,
            self.study.bench(self.real),
            attainment=self.args.attainment,
            why_not=self._why_not,
            told=self._told(start),
        )

    def _why_not(self, configuration: Configuration) -> str | None:
        """Why a configuration cannot run; None if it can."""
        from quire.engine.resolve import resolve
        from quire.tune.space import apply

        try:
            resolve(apply(self.start, configuration), self.hardware)
        except ConfigError as error:
            return str(error)
        return None

    def _told(self, start: Configuration) -> Callable[[Trial], None]:
        from quire.tune.search import describe
        from quire.tune.space import show

        count = 0

        def told(trial: Trial) -> None:
            nonlocal count
            count += 1
            self.study.finish(trial)
            _say(f"{count:>3}  {show(trial.configuration, start)}: {describe(trial)}")

        return told

    def _facts(self, result: Result, share: float | None) -> Facts:
        from quire.bench.machine import describe_machine, portable_command, portable_name
        from quire.tune.report import Facts

        facts = Facts(
            model=portable_name(self.start.model),
            slo=str(self.slo),
            attainment=self.args.attainment,
            method=self.args.method,
            load=_describe_load(self.args),
            machine=describe_machine(),
            command=portable_command(sys.argv[1:]),
            share=share,
            resumed=self.study.resumed,
        )
        if result.best is not None and result.best.best is not None:
            _say("Measuring the best once more, with a profile …")
            try:
                facts.verified, facts.ops = self.real.profile(
                    result.best.configuration, result.best.best.rate
                )
            except QuireError as error:
                _say(f"The best could not be measured once more: {error}")
        return facts

    def _write(self, result: Result, facts: Facts) -> None:
        from quire.core.config_file import write_settings
        from quire.tune import report, space
        from quire.tune.plot import plot

        picture = self.folder / "report.png"
        if plot(picture, result, facts):
            facts.files["the curve"] = picture.name
        if result.best is not None:
            args = space.apply(self.start, result.best.configuration)
            write_settings(self.output, space.file_values(args), report.comments(result, facts))
            facts.files["the configuration"] = self.output.name
        (self.folder / "report.json").write_bytes(report.to_json(result, facts))
        (self.folder / "report.md").write_text(report.to_markdown(result, facts), encoding="utf-8")
        _say(f"The report is {self.folder / 'report.md'}.")
        print(report.headline(result, facts))
        if result.best is not None:
            print(f"quire serve --config {self.output}")


def _check(args: argparse.Namespace) -> tuple[argparse.Namespace, EngineArgs, Slo]:
    """The flags, completed, the engine to start from, and the objective.

    Raises:
        ConfigError: a flag is wrong, or is what tuning is to find.
    """
    from quire.bench.datasets import complete
    from quire.bench.slo import Slo
    from quire.tune.server import check_load

    if args.slo is None:
        raise ConfigError(
            "There is no objective.", fix="Give one: --slo ttft=1,tpot=100ms.", param="--slo"
        )
    if args.base_url is not None:
        raise ConfigError(
            "--base-url is a server that runs; tuning starts its own.", param="--base-url"
        )
    if math.isfinite(args.request_rate) or args.request_rates is not None:
        raise ConfigError("The request rate is what tuning finds.", param="--request-rate")
    if args.output is not None and args.output.suffix not in (".toml", ".yaml", ".yml"):
        raise ConfigError("--output must end in .yaml or .toml.", param="--output")
    slo, given_clients = Slo.parse(args.slo), args.num_clients is not None
    start = engine_args_from(args)
    if args.model_tag is not None:
        if start.model not in (EngineArgs().model, args.model_tag):
            raise ConfigError(
                f"MODEL is {args.model_tag} and --model is {start.model}; give one of them.",
                param="--model",
            )
        args = argparse.Namespace(**{**vars(args), "model": args.model_tag})
        start = engine_args_from(args)
    args = complete(argparse.Namespace(**{**vars(args), "num_clients": args.num_clients or 1}))
    args.num_prompts = len(check_load(args))
    if not given_clients:
        args.num_clients = args.num_prompts
    return args, start, slo


def _held(names: list[str]) -> list[str]:
    from quire.core.registry import did_you_mean

    held = [name.strip().lstrip("-").replace("-", "_") for name in names]
    known = asdict(EngineArgs())
    for name in held:
        if name not in known:
            raise ConfigError(
                f"--hold {name}: unknown flag; {did_you_mean(name, known)}", param="--hold"
            )
    return held


def _describe_load(args: argparse.Namespace) -> str:
    lengths = (
        f" of {args.input_len} and {args.output_len} tokens"
        if args.input_len and args.output_len
        else ""
    )
    return (
        f"{args.num_prompts} requests{lengths} (`{args.dataset_name}`), "
        f"at most {args.num_clients} at once"
    )


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _attainment(text: str) -> float:
    value = float(text)
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not in (0, 1]")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value
