"""The report of a search: what was measured, what was skipped and why, and the gain of the best."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import msgspec

from quire.metrics.times import PARTS
from quire.tune.objective import Measurement, pareto
from quire.tune.search import Result, Trial, compared, describe
from quire.tune.space import differences, show, show_value

SHOWN_PARTS = 6
SHOWN_OPS = 8
SHOWN_PRUNED = 10


class Facts(msgspec.Struct):
    """What a report contains in addition to the search's result.

    Attributes:
        load: the workload in words.
        share: the largest memory share with which the engine starts; None if it was not searched.
        verified: the best configuration, measured again.
        verified_start: the start, measured again after it, if it meets the objective.
        ops: the profile of the best, if there is one.
        files: description → name of each written file.
    """

    model: str
    slo: str
    attainment: float
    load: str
    machine: dict[str, Any]
    command: str
    share: float | None = None
    resumed: int = 0
    verified: Measurement | None = None
    verified_start: Measurement | None = None
    ops: dict[str, Any] | None = None
    files: dict[str, str] = {}


def to_json(result: Result, facts: Facts) -> bytes:
    """Return everything as JSON; an infinite rate is null."""
    return msgspec.json.format(msgspec.json.encode({"facts": facts, "result": result})) + b"\n"


def to_markdown(result: Result, facts: Facts) -> str:
    sections = [_head(result, facts), _changes(result), _splits(result, facts), _tried(result)]
    sections += [_not_tried(result), _curve(result), _operations(facts), _how(facts)]
    return "\n\n".join(section for section in sections if section) + "\n"


def curve(result: Result) -> list[tuple[Trial, Measurement]]:
    """Return the measurements on the Pareto frontier of throughput and the p99 of E2E."""
    pairs = [(trial, run) for trial in result.trials for run in trial.runs]
    kept = pareto([run for _, run in pairs], lambda run: run.e2e_ms.get("p99", math.inf))
    return [pairs[i] for i in kept]


def headline(result: Result, facts: Facts) -> str:
    """Return the result in one sentence."""
    best, start = result.best, result.start
    if best is None:
        return (
            f"No configuration meets {facts.slo} for {facts.attainment:.0%} of the requests at any "
            "rate. This machine cannot meet the objective with this model and load."
        )
    if best is start:
        return f"Nothing was better than the start: {describe(best)}."
    text = f"The best: {describe(best)}"
    if start.best is None:
        return f"{text}; the start meets the objective at no rate."
    return f"{text}, {best.goodput / start.goodput:.2f} times the start's {start.goodput:.3g}."


def _head(result: Result, facts: Facts) -> str:
    runs = sum(len(trial.runs) for trial in result.trials)
    counts = (
        f"{len(result.trials)} configurations were measured with {runs} loads, "
        f"{len(result.pruned)} were skipped."
    )
    lines = [
        f"# Tuning {facts.model}",
        "",
        f"Objective: `{facts.slo}` for {facts.attainment:.0%} of the requests. Load: {facts.load}.",
        "",
        f"**{headline(result, facts)}**",
        "",
        counts,
    ]
    if facts.share is not None:
        lines.append(
            f"The engine starts with at most {facts.share:.0%} of the memory "
            "(`gpu-memory-utilization`)."
        )
    return "\n".join(lines)


def _changes(result: Result) -> str:
    """List the fields in which the best differs from the start, with the evidence."""
    if result.best is None or result.best is result.start:
        return ""
    rows = [
        [name.replace("_", "-"), show_value(old), show_value(new), _evidence(result, name)]
        for name, (old, new) in differences(
            result.start.configuration, result.best.configuration
        ).items()
    ]
    return "## What changed\n\n" + _table(["flag", "start", "best", "evidence"], rows)


def _evidence(result: Result, name: str) -> str:
    """Say what two configurations gave that differ only in this field and in the memory share."""
    pair = compared(result, name)
    if pair is None:
        return "not measured separately"
    before, after = pair
    if before.best is None:
        return f"without: {before.why}"
    gain = after.goodput / before.goodput - 1.0
    return f"{before.goodput:.3g} → {after.goodput:.3g} requests/s, {gain:+.0%}"


def _splits(result: Result, facts: Facts) -> str:
    """Compare where the time goes, before and after."""
    best = facts.verified or (result.best.best if result.best else None)
    shown = {
        "start": result.start.best or (result.start.runs[-1] if result.start.runs else None),
        "best": best,
    }
    splits = {name: run.split for name, run in shown.items() if run is not None and run.split}
    if not splits:
        return ""
    parts = sorted(PARTS, key=lambda part: -max(s.get(part, 0.0) for s in splits.values()))
    parts = [part for part in parts if part != "queue"][:SHOWN_PARTS]
    rows = [[part, *(f"{s.get(part, 0.0):.1%}" for s in splits.values())] for part in parts]
    rows.append(
        ["requests waiting (mean)", *(f"{s.get('queue', 0.0):.1f}" for s in splits.values())]
    )
    return "## Where the time goes\n\n" + _table(["part", *splits], rows)


def _tried(result: Result) -> str:
    rows = []
    for number, trial in enumerate(result.trials, 1):
        run = trial.best or (trial.runs[-1] if trial.runs else None)
        waits = (run.ttft_ms, run.tpot_ms, run.e2e_ms) if run else ({}, {}, {})
        rows.append(
            [
                f"{number}{' ★' if trial is result.best else ''}",
                show(trial.configuration, result.start.configuration),
                "" if trial.predicted is None else f"{trial.predicted:.3g}",
                f"{trial.goodput:.3g}" if trial.best else "–",
                "" if run is None else show_value(run.rate),
                "" if run is None else f"{run.attainment:.0%}",
                *(f"{w['p99']:,.0f}" if "p99" in w else "" for w in waits),
                str(len(trial.runs)),
                trial.why,
            ]
        )
    names = [
        *("#", "configuration", "predicted", "goodput", "rate", "within", "TTFT p99 ms"),
        *("TPOT p99 ms", "E2E p99 ms", "loads", "why it ended"),
    ]
    return (
        "## What was measured\n\nRates are requests per second. Latencies are those of the load "
        "that counts, or of the last one.\n\n" + _table(names, rows)
    )


def _not_tried(result: Result) -> str:
    if not result.pruned:
        return ""
    reasons = Counter(_reason(pruned.why) for pruned in result.pruned)
    lines = [f"- {count} × {reason}" for reason, count in reasons.most_common()]
    top = sorted(result.pruned, key=lambda p: -(p.predicted or 0.0))[:SHOWN_PRUNED]
    rows = [
        [
            show(pruned.configuration, result.start.configuration),
            "–" if pruned.predicted is None else f"{pruned.predicted:.3g}",
            pruned.why,
        ]
        for pruned in top
    ]
    table = _table(["configuration", "predicted", "why"], rows)
    return "\n".join(
        ["## What was skipped, and why", "", *lines, "", "The most promising of them:"]
    ) + (f"\n\n{table}")


def _reason(why: str) -> str:
    return "predicted to be worse than the best" if why.startswith("predicted") else why


def _curve(result: Result) -> str:
    rows = [
        [
            f"{run.requests_s:.3g}",
            f"{run.output_tok_s:,.0f}",
            f"{run.e2e_ms.get('p99', math.nan):,.0f}",
            f"{run.attainment:.0%}",
            show(trial.configuration, result.start.configuration),
        ]
        for trial, run in curve(result)
    ]
    if not rows:
        return ""
    names = ["requests/s", "output tok/s", "E2E p99 ms", "within", "configuration"]
    return (
        "## Throughput against latency\n\nThe measurements of which none has both more "
        "throughput and a lower p99.\n\n" + _table(names, rows)
    )


def _operations(facts: Facts) -> str:
    """Return the operations of the best configuration, by time."""
    if not facts.ops or not facts.ops.get("ops"):
        return ""
    seconds: Counter[str] = Counter()
    num_bytes: Counter[str] = Counter()
    for op in facts.ops["ops"]:
        seconds[op["name"]] += op["seconds"]
        num_bytes[op["name"]] += op["nbytes"]
    total = sum(seconds.values()) or 1.0
    rows = [
        [name, f"{spent / total:.1%}", f"{num_bytes[name] / max(spent, 1e-12) / 1e9:,.1f}"]
        for name, spent in seconds.most_common(SHOWN_OPS)
    ]
    return f"## The best, profiled\n\n{facts.ops['steps']} steps under the load.\n\n" + _table(
        ["operation", "share", "GB/s"], rows
    )


def _how(facts: Facts) -> str:
    machine = f"{facts.machine.get('cpu')}, {facts.machine.get('cores')} cores"
    lines = ["## How", "", f"- {machine}", f"- `{facts.command}`"]
    if facts.verified is not None:
        run = facts.verified
        again = (
            f"- Measured again at the end, the best had {run.goodput:.3g} requests/s within "
            f"the objective ({run.attainment:.0%} of the requests)"
        )
        if (start := facts.verified_start) is not None:
            again += f", the start {start.goodput:.3g} ({start.attainment:.0%})"
        lines.append(f"{again}.")
    if facts.resumed:
        lines.append(f"- {facts.resumed} measurements are from an earlier start.")
    lines += [f"- {name}: `{file}`" for name, file in facts.files.items()]
    return "\n".join(lines)


def _table(names: list[str], rows: list[list[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
    )


def comments(result: Result, facts: Facts) -> list[str]:
    """Return the comments at the head of the config file."""
    aim = f"{facts.slo} for {facts.attainment:.0%} of the requests"
    return [
        f"Made by `quire tune` for {facts.model}: {aim}.",
        headline(result, facts),
        f"Load: {facts.load}.",
    ]
