"""Does `quire tune` find what an exhaustive grid finds, with a third of its runs?

    python benchmarks/tune_vs_grid.py --study DIR [--slo ttft=0.4,tpot=40ms] [--turns N]
        [--json FILE]

Both methods measure real servers of the opt-125m shape over the same configurations, and look for
rates in the same way, each with measurements of its own. Between the two a machine may become
slower, and the best of twenty measurements is also the luckiest: so the two that were chosen are
measured again, N times in turns, and the medians are compared. Everything that the methods measure
is kept in DIR: the script may be killed and started again, also in pieces (`timeout 100 python …`),
and ends with a line of JSON.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from quire.bench.machine import circumstances
from quire.bench.results.report import write_json
from quire.system.hardware import detect
from quire.tune.command import check
from quire.tune.main import add_arguments
from quire.tune.objective import best_rate
from quire.tune.predict import Simulator
from quire.tune.search import Result, Search, Trial, describe, grid
from quire.tune.server import ServerBench, workload_at
from quire.tune.space import Configuration, show, start_of
from quire.tune.study import Study

SPACE: dict[str, list[Any]] = {
    "max_num_seqs": [64, 4, 8, 16, 32],
    "max_num_batched_tokens": [None, 256, 512, 1024],
}
LOAD = [
    *("--load-format", "dummy", "--dtype", "bfloat16", "--max-model-len", "512"),
    *("--num-prompts", "32", "--input-len", "64", "--output-len", "24"),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slo", default="ttft=0.4,tpot=40ms")
    parser.add_argument("--study", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=5, metavar="N")
    parser.add_argument("--json", type=Path)
    own = parser.parse_args()
    command = argparse.ArgumentParser()
    add_arguments(command)
    args, start, slo = check(
        command.parse_args(["opt-125m", "--slo", own.slo, *LOAD, "--attainment", "0.9"])
    )
    bench = ServerBench(args, start)
    first = start_of(start, SPACE)

    def reporter(study: Study, name: str) -> Any:
        def report(trial: Trial) -> None:
            study.finish(trial)
            text = f"{name}: {show(trial.configuration, first)}: {describe(trial)}"
            print(text, file=sys.stderr, flush=True)

        return report

    settings = {"slo": str(slo), "load": LOAD}
    found = Study(own.study / "search", settings, SPACE)
    simulator = Simulator(
        start,
        detect(),
        lambda rate: workload_at(args, rate),
        args.num_clients,
        slo,
        args.attainment,
    )
    searched = Search(
        SPACE,
        first,
        found.bench(bench),
        simulator,
        attainment=args.attainment,
        max_runs=24,
        report=reporter(found, "search"),
    ).run()
    whole = Study(own.study / "grid", settings, SPACE)
    exhaustive = grid(
        SPACE,
        first,
        whole.bench(bench),
        attainment=args.attainment,
        find=best_rate,
        report=reporter(whole, "grid"),
    )
    row = compare(searched, exhaustive)
    row |= duel(bench, [row["search_best"], row["grid_best"]], own.turns, args.attainment)
    row |= {"model": "opt-125m", "slo": str(slo)}
    row |= circumstances("tune_vs_grid", "python benchmarks/tune_vs_grid.py")
    for name, value in row.items():
        print(f"  {name:<18} {value}")
    if own.json is not None:
        write_json(own.json, row)
    return 0


def compare(searched: Result, exhaustive: Result) -> dict[str, Any]:
    """What each method has chosen, and the share of the grid's runs that the search needed."""
    assert searched.best is not None
    assert exhaustive.best is not None
    servers = (len(searched.trials), len(exhaustive.trials))
    loads = tuple(sum(len(t.runs) for t in result.trials) for result in (searched, exhaustive))
    return {
        "search_best": searched.best.configuration,
        "grid_best": exhaustive.best.configuration,
        "search_said": searched.best.goodput,
        "grid_said": exhaustive.best.goodput,
        "servers": servers,
        "loads": loads,
        "share_of_servers": servers[0] / servers[1],
        "share_of_loads": loads[0] / loads[1],
    }


def duel(
    bench: ServerBench, chosen: list[Configuration], turns: int, attainment: float
) -> dict[str, Any]:
    """Goodput of the search's choice and of the grid's, measured in turns."""
    found: list[list[float]] = [[], []]
    for turn in range(turns):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            with bench(chosen[which]) as measure:
                best = best_rate(measure, attainment).best
            found[which].append(0.0 if best is None else best.goodput)
            print(f"turn {turn}: {chosen[which]}: {found[which][-1]:.3g} requests/s", flush=True)
    medians = [statistics.median(each) for each in found]
    return {
        "search_goodput": found[0],
        "grid_goodput": found[1],
        "share_of_best": medians[0] / medians[1],
    }


if __name__ == "__main__":
    sys.exit(main())
