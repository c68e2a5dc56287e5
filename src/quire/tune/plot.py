"""The picture of a search: throughput against latency, and goodput by configuration."""

from __future__ import annotations

from pathlib import Path

from quire.tune.report import Facts, curve
from quire.tune.search import Result
from quire.tune.space import show


def plot(path: Path, result: Result, facts: Facts) -> bool:
    """Draw a PNG and return True; return False if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for trial in result.trials:
        points = sorted((run.requests_s, run.e2e_ms.get("p99", 0.0) / 1e3) for run in trial.runs)
        marked = trial is result.best
        left.plot(
            *zip(*points, strict=True) if points else ([], []),
            marker="o",
            markersize=4,
            linewidth=2.0 if marked else 0.7,
            color="tab:blue" if marked else "tab:orange" if trial is result.start else "0.75",
            label="best" if marked else "start" if trial is result.start else None,
            zorder=3 if marked or trial is result.start else 2,
        )
    frontier = [(run.requests_s, run.e2e_ms.get("p99", 0.0) / 1e3) for _, run in curve(result)]
    if frontier:
        left.plot(*zip(*frontier, strict=True), "k--", linewidth=1, label="Pareto curve", zorder=4)
    left.set_xlabel("requests/s")
    left.set_ylabel("E2E p99, s")
    left.set_ylim(bottom=0)
    left.legend()
    left.set_title(f"{facts.model}, {facts.slo}")
    order = sorted(result.trials, key=lambda t: t.goodput)
    names = [show(t.configuration, result.start.configuration)[:60] for t in order]
    colors = [
        "tab:blue" if t is result.best else "tab:orange" if t is result.start else "0.75"
        for t in order
    ]
    places = range(len(order))
    right.barh(places, [t.goodput for t in order], color=colors)
    right.set_yticks(places, names, fontsize=7)
    right.set_xlabel("goodput, requests/s (none: no better, or misses the objective)")
    figure.savefig(path, dpi=110)
    return True
