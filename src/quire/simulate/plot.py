"""The plot of a simulation: latency distributions, and the replicas' load over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quire.core.extras import log_axis, new_figure, write_figure
from quire.simulate.fleet import Outcome, Replica
from quire.simulate.histogram import RESOLUTION, SMALLEST

INK, QUEUE, KV = "#1f4e79", "#c55a11", "#548235"


def plot(path: Path, title: str, outcome: Outcome, replicas: Sequence[Replica]) -> None:
    """Write a PNG: distributions of TTFT and ITL, requests over time, KV cache over time.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = new_figure("--plot", 11, 7, title)
    grid = figure.subplots(2, 2)
    _distribution(grid[0][0], "time to first token", *_exact(outcome.first - outcome.sent))
    _distribution(grid[0][1], "between tokens", *_binned(outcome.gaps.counts))
    _requests(grid[1][0], replicas)
    _cache(grid[1][1], replicas)
    write_figure(path, figure)


def _exact(seconds: Any) -> tuple[Any, Any]:
    ordered = np.sort(seconds[np.isfinite(seconds)])
    return ordered, np.arange(1, len(ordered) + 1) / max(1, len(ordered))


def _binned(counts: Any) -> tuple[Any, Any]:
    used = np.flatnonzero(counts)
    return SMALLEST * RESOLUTION ** (used + 0.5), np.cumsum(counts[used]) / max(1, counts.sum())


def _distribution(axes: Any, name: str, seconds: Any, share: Any) -> None:
    axes.step(seconds * 1e3, share, where="post", color=INK)
    log_axis(axes)
    axes.set_ylim(0, 1.1)
    axes.set_xlabel(f"{name}, ms")
    axes.set_ylabel("share of requests" if "first" in name else "share of tokens")
    for at in (0.5, 0.99):
        index = int(np.searchsorted(share, at))
        if index < len(seconds):
            value = seconds[index] * 1e3
            axes.plot([value], [at], "o", color=INK)
            label = f"p{at * 100:.0f} {value:,.4g} ms"
            # Nothing is drawn to the left above the curve, and to the right below it.
            side: dict[str, Any] = {"xytext": (-8, 4), "ha": "right", "va": "bottom"}
            if at == 0.5:
                side = {"xytext": (8, -4), "ha": "left", "va": "top"}
            axes.annotate(label, (value, at), textcoords="offset points", **side)
    axes.grid(alpha=0.3)


def _requests(axes: Any, replicas: Sequence[Replica]) -> None:
    for i, replica in enumerate(replicas):
        if replica.history.points:
            time, running, waiting, _ = zip(*replica.history.points, strict=True)
            for name, counts, color in (("running", running, INK), ("waiting", waiting, QUEUE)):
                label = None if i else name
                axes.step(time, counts, where="post", color=color, alpha=0.8, label=label)
    axes.set_xlabel("seconds")
    axes.set_ylabel("requests, each replica a line" if len(replicas) > 1 else "requests")
    axes.set_ylim(bottom=0)
    axes.legend()
    axes.grid(alpha=0.3)


def _cache(axes: Any, replicas: Sequence[Replica]) -> None:
    for replica in replicas:
        if replica.history.points:
            time, _, _, share = zip(*replica.history.points, strict=True)
            axes.plot(time, np.array(share) * 100, color=KV, alpha=0.8)
    axes.set_xlabel("seconds")
    axes.set_ylabel("KV cache in use, %")
    axes.set_ylim(0, 102)
    axes.grid(alpha=0.3)
