"""`quire tune`: find the configuration that serves the most requests under an objective."""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quire.bench.machine import describe_machine, portable_command, portable_name
from quire.bench.serving.datasets import complete
from quire.bench.serving.slo import Slo
from quire.core.errors import ConfigError, QuireError
from quire.core.extras import check_output
from quire.core.registry import did_you_mean
from quire.resolve.arguments import EngineArgs
from quire.resolve.config_file import write_settings
from quire.resolve.engine import resolve
from quire.system.hardware import detect
from quire.tune import memory, report, server, space
from quire.tune.predict import Simulator
from quire.tune.search import Result, Search, Trial, describe, grid
from quire.tune.study import Study

LOAD = (
    *("dataset_name", "dataset_path", "num_prompts", "num_clients", "input_len", "output_len"),
    *("range_ratio", "num_prefixes", "prefix_len", "num_turns", "prompts", "vocab_size"),
    *("burstiness", "endpoint", "ignore_eos", "repetitions", "seed"),
)
"""Flags of `bench serve` that define the load."""


def tune(args: argparse.Namespace) -> int:
    """Search, write the config file and the report, and return the exit status: 1 if no
    configuration meets the objective.

    Raises:
        ConfigError: a flag is wrong.
        QuireError: the start cannot be measured.
    """
    tuning = _Tuning(args)
    try:
        result = tuning.run()
    except KeyboardInterrupt:
        print("\nStopped. Run the same command to continue.", file=sys.stderr)
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
        self.args, self.start, self.slo = check(args)
        self.hardware = detect()
        given, held = space.parse_space(args.space), held_fields(args.hold)
        self.searched = args.method == "search"
        if self.searched:
            lossy = args.allow_quantization
            cores = self.hardware.cores
            self.space = space.search_space(self.start, cores, given=given, held=held, lossy=lossy)
        else:
            self.space = {**space.GRID, **given}
        self.finds_memory = self.searched and not {*held, *given} & set(space.MEMORY)
        self.folder: Path = args.study or Path(f"tune-{portable_name(self.start.model)}")
        self.output: Path = args.output or self.folder / "config.yaml"
        self.real = server.ServerBench(self.args, self.start)
        load = {name: getattr(self.args, name) for name in LOAD}
        settings = {
            "start": space.file_values(self.start),
            "load": {n: str(v) if isinstance(v, Path) else v for n, v in load.items()},
            "objective": [str(self.slo), args.attainment, args.method],
        }
        values = {name: [getattr(self.start, name), *vs] for name, vs in self.space.items()}
        values = {name: list(dict.fromkeys(vs)) for name, vs in values.items()}
        self.study = Study(self.folder, settings, values)
        if self.study.resumed:
            _say(f"Continuing in {self.folder} with {self.study.resumed} earlier measurements.")

    def run(self) -> Result:
        """Search, verify, write."""
        share = self._memory_share() if self.finds_memory else None
        result = self._search()
        self._write(result, self._facts(result, share))
        return result

    def _memory_share(self) -> float | None:
        share: float | None = self.study.note("share")
        if share is None:
            _say("Looking for the largest memory share with which the engine starts …")
            share = memory.largest_share(self.args, self.start)
            self.study.set_note("share", share)
        if share is not None:
            _say(f"The engine starts with {share:.0%} of the memory.")
            values = self.space["gpu_memory_utilization"]
            self.space["gpu_memory_utilization"] = list(dict.fromkeys([*values, share]))
        return share

    def _search(self) -> Result:
        args, start = self.args, space.start_of(self.start, self.space)
        count = 0

        def said(trial: Trial) -> None:
            nonlocal count
            count += 1
            self.study.finish(trial)
            _say(f"{count:>3}  {space.show(trial.configuration, start)}: {describe(trial)}")

        bench = self.study.bench(self.real)
        if not self.searched:
            return grid(
                self.space,
                start,
                bench,
                attainment=args.attainment,
                why_not=self._why_not,
                report=said,
            )
        simulator = Simulator(
            self.start,
            self.hardware,
            lambda rate: server.workload_at(args, rate),
            args.num_clients,
            self.slo,
            args.attainment,
        )
        return Search(
            self.space,
            start,
            bench,
            simulator,
            attainment=args.attainment,
            max_runs=args.max_runs,
            why_not=self._why_not,
            report=said,
        ).run()

    def _why_not(self, configuration: space.Configuration) -> str | None:
        """Return why a configuration cannot run; None if it can."""
        try:
            resolve(space.apply(self.start, configuration), self.hardware)
        except ConfigError as error:
            return str(error)
        return None

    def _facts(self, result: Result, share: float | None) -> report.Facts:
        facts = report.Facts(
            model=portable_name(self.start.model),
            slo=str(self.slo),
            attainment=self.args.attainment,
            load=_describe_load(self.args),
            machine=describe_machine(),
            command=portable_command(sys.argv[1:]),
            share=share,
            resumed=self.study.resumed,
        )
        if result.best is not None and result.best.best is not None:
            _say("Measuring the best again, with a profile, and the start …")
            try:
                facts.verified, facts.ops = self.real.profile(
                    result.best.configuration, result.best.best.rate
                )
                if result.start.best is not None and result.start is not result.best:
                    with self.real(result.start.configuration) as measure:
                        facts.verified_start = measure(result.start.best.rate)
            except QuireError as error:
                _say(f"The best could not be measured again: {error}")
        return facts

    def _write(self, result: Result, facts: report.Facts) -> None:
        best = result.best
        if best is not None:
            facts.files["the configuration"] = self.output.name
        (self.folder / "report.json").write_bytes(report.to_json(result, facts))
        (self.folder / "report.md").write_text(report.to_markdown(result, facts), encoding="utf-8")
        if best is not None:
            args = space.apply(self.start, best.configuration)
            write_settings(self.output, space.file_values(args), report.comments(result, facts))
        _say(f"The report is {self.folder / 'report.md'}.")
        print(report.headline(result, facts))
        if best is not None:
            print(f"quire serve --config {self.output}")


def check(args: argparse.Namespace) -> tuple[argparse.Namespace, EngineArgs, Slo]:
    """Return the completed flags, the engine to start from, and the objective.

    Raises:
        ConfigError: a flag is wrong, or sets what tuning has to find.
    """
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
    check_output(args.output, "--output")
    slo, given_clients = Slo.parse(args.slo), args.num_clients is not None
    start = EngineArgs.from_cli_args(args)
    changes: dict[str, Any] = {"model": start.model, "num_clients": args.num_clients or 1}
    args = complete(argparse.Namespace(**(vars(args) | changes)))
    args.num_prompts = len(server.check_load(args))
    if not given_clients:
        args.num_clients = args.num_prompts
    return args, start, slo


def held_fields(names: list[str]) -> list[str]:
    """Return fields of `EngineArgs` from `--hold`."""
    held = [name.strip().lstrip("-").replace("-", "_") for name in names]
    known = asdict(EngineArgs())
    for name in held:
        if name not in known:
            raise ConfigError(
                f"--hold {name}: unknown flag; {did_you_mean(name, known)}", param="--hold"
            )
    return held


def _describe_load(args: argparse.Namespace) -> str:
    lengths = ""
    if args.input_len and args.output_len:
        lengths = f" of {args.input_len} and {args.output_len} tokens"
    return (
        f"{args.num_prompts} requests{lengths} (`{args.dataset_name}`), "
        f"at most {args.num_clients} at once"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr)
