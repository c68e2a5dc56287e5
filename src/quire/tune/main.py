"""`quire tune`: find the configuration that serves the most requests under an objective."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from quire.core.errors import ConfigError, QuireError
from quire.tune import flags

if TYPE_CHECKING:
    from quire.tune.report import Facts
    from quire.tune.search import Result, Trial
    from quire.tune.space import Configuration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the objective's, the search's, the load's and the engine's flags to `parser`."""
    flags.add(parser)


def run(args: argparse.Namespace) -> int:
    """Search, write the config file and the report, and return the exit status: 1 if no
    configuration meets the objective.

    Raises:
        ConfigError: a flag is wrong.
        QuireError: the start cannot be measured.
    """
    tuning = _Tuning(args)
    try:
        result, _ = tuning.run()
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
        from quire.bench.machine import portable_name
        from quire.system.hardware import detect
        from quire.tune import space
        from quire.tune.server import ServerBench
        from quire.tune.study import Study

        self.args, self.start, self.slo = flags.check(args)
        self.hardware = detect()
        given = space.parse_space(args.space)
        held = flags.held_fields(args.hold)
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
            "start": space.file_values(self.start),
            "load": {name: flags.plain(getattr(self.args, name)) for name in flags.LOAD},
            "objective": [str(self.slo), args.attainment, args.method],
        }
        values = {name: [getattr(self.start, name), *vs] for name, vs in self.space.items()}
        self.study = Study(
            folder, settings, {name: list(dict.fromkeys(vs)) for name, vs in values.items()}
        )
        if self.study.resumed:
            _say(f"Continuing in {folder} with {self.study.resumed} earlier measurements.")

    def run(self) -> tuple[Result, Facts]:
        """Search, verify, write."""
        from quire.tune.space import start_of

        share = self._memory_share() if self.finds_memory else None
        start = start_of(self.start, self.space)
        result = self._search(start) if self.searched else self._grid(start)
        facts = self._facts(result, share)
        self._write(result, facts)
        return result, facts

    def _memory_share(self) -> float | None:
        from quire.tune.memory import largest_share

        share: float | None = self.study.note("share")
        if share is None:
            _say("Looking for the largest memory share with which the engine starts …")
            share = largest_share(self.args, self.start)
            self.study.set_note("share", share)
        if share is not None:
            _say(f"The engine starts with {share:.0%} of the memory.")
            values = self.space["gpu_memory_utilization"]
            self.space["gpu_memory_utilization"] = list(dict.fromkeys([*values, share]))
        return share

    def _search(self, start: Configuration) -> Result:
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
            report=self._reporter(start),
        ).run()

    def _grid(self, start: Configuration) -> Result:
        from quire.tune.search import grid

        return grid(
            self.space,
            start,
            self.study.bench(self.real),
            attainment=self.args.attainment,
            why_not=self._why_not,
            report=self._reporter(start),
        )

    def _why_not(self, configuration: Configuration) -> str | None:
        """Return why a configuration cannot run; None if it can."""
        from quire.resolve.engine import resolve
        from quire.tune.space import apply

        try:
            resolve(apply(self.start, configuration), self.hardware)
        except ConfigError as error:
            return str(error)
        return None

    def _reporter(self, start: Configuration) -> Callable[[Trial], None]:
        from quire.tune.search import describe
        from quire.tune.space import show

        count = 0

        def report(trial: Trial) -> None:
            nonlocal count
            count += 1
            self.study.finish(trial)
            _say(f"{count:>3}  {show(trial.configuration, start)}: {describe(trial)}")

        return report

    def _facts(self, result: Result, share: float | None) -> Facts:
        from quire.bench.machine import describe_machine, portable_command, portable_name
        from quire.tune.report import Facts

        facts = Facts(
            model=portable_name(self.start.model),
            slo=str(self.slo),
            attainment=self.args.attainment,
            method=self.args.method,
            load=flags.describe_load(self.args),
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

    def _write(self, result: Result, facts: Facts) -> None:
        from quire.resolve.config_file import write_settings
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


def _say(text: str) -> None:
    print(text, file=sys.stderr)
