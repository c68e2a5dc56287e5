"""Would a user of Quire have what users of vLLM complained of?

    python -m benchmarks.complaints [--issue 7883 …] [--repetitions 3] [--json FILE.jsonl]

A row for each of thirty issues: what was measured, the bar, and whether it is met; a few have two
or three. Small or made-up models stand in for the large ones, and all numbers are ratios taken in
one run, or counts. Wants a quiet machine for some twenty minutes; a row that fails is named, and
the others go on. Peers (4702, 8866) are those installed beside Quire.
"""

from __future__ import annotations

import argparse
import logging
import sys
import textwrap
import traceback

from benchmarks.bars.bar import Seen
from benchmarks.complaints import adapters, answers, memory, scheduling, serving, speed
from benchmarks.complaints.scenario import Scenario
from quire.bench.machine import circumstances
from quire.bench.main import cleaning_up_when_terminated
from quire.bench.results.report import Row, jsonl, write_json
from quire.resolve.flags import count
from quire.system import env

SCENARIOS: tuple[Scenario, ...] = (
    *answers.SCENARIOS,
    *scheduling.SCENARIOS,
    *memory.SCENARIOS,
    *adapters.SCENARIOS,
    *speed.SCENARIOS,
    *serving.SCENARIOS,
)
COMMAND = "python -m benchmarks.complaints"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    issues = sorted({scenario.issue for scenario in SCENARIOS})
    parser.add_argument("--issue", nargs="+", type=int, choices=issues, metavar="N")
    parser.add_argument("--repetitions", type=count, default=3, metavar="N")
    parser.add_argument("--json", type=jsonl, metavar="FILE", help="a .jsonl file, to append to")
    args = parser.parse_args()
    logging.disable(logging.INFO)
    told = circumstances("complaints", COMMAND)
    chosen = [s for s in SCENARIOS if args.issue is None or s.issue in args.issue]
    verdicts = []
    with cleaning_up_when_terminated():
        for scenario in chosen:
            found = find(scenario, args.repetitions)
            print(line(scenario, found), flush=True)
            verdicts.append(verdict(scenario, found))
            if args.json is not None:
                write_json(args.json, row(scenario, found) | told)
    names = ("met", "missed", "not there", "failed")
    print(", ".join(f"{verdicts.count(name)} {name}" for name in names))
    return 0 if set(verdicts) <= {"met", "not there"} else 1


def find(scenario: Scenario, repetitions: int) -> Seen | str:
    """What was seen, or why nothing was."""
    if isinstance(scenario.measure, str):
        return scenario.measure
    try:
        return scenario.measure(repetitions)
    except Exception as error:  # the others are measured all the same
        if env.log_level() == "DEBUG":
            traceback.print_exc()
        return f"{type(error).__name__}: {error}"


def verdict(scenario: Scenario, found: Seen | str) -> str:
    if isinstance(scenario.measure, str):
        return "not there"
    if isinstance(found, str):
        return "failed"
    return "met" if scenario.met(found.value) else "missed"


def line(scenario: Scenario, found: Seen | str) -> str:
    """One row of the table, its explanation below it."""
    shown = "–"
    if isinstance(found, Seen):
        shown = scenario.show(found.value)
        if found.low != found.high:
            shown += f" ({scenario.show(found.low)} to {scenario.show(found.high)})"
    text = (
        f"{scenario.issue:>5}  {verdict(scenario, found):<9}  {scenario.complaint}\n"
        f"{'':18}{scenario.what}: {shown}, bar {scenario.bar}"
    )
    why = [found] if isinstance(found, str) else []
    why += [f"without {scenario.without}"] if scenario.without else []
    below = (textwrap.indent(textwrap.fill(each, 100), " " * 18) for each in why)
    return "\n".join([text, *below])


def row(scenario: Scenario, found: Seen | str) -> Row:
    """A line of JSON."""
    common: Row = {
        "issue": scenario.issue, "complaint": scenario.complaint, "what": scenario.what,
        "unit": scenario.unit, "bar": scenario.bound, "at_most": scenario.at_most,
        "verdict": verdict(scenario, found), "without": scenario.without or None,
    }  # fmt: skip
    if isinstance(found, str):
        return common | {"why": found}
    return common | {
        "value": found.value,
        "repetitions": found.repetitions,
        "min": {"value": found.low},
        "max": {"value": found.high},
        **found.facts,
    }


if __name__ == "__main__":
    sys.exit(main())
