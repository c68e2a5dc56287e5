"""The roofline plot: the model's operations, and the machine's limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from quire.core.errors import ConfigError
from quire.core.extras import new_figure, write_figure
from quire.explain.report import LimitsUsed, OpLine, Report

COLOURS = {"memory": "#1f4e79", "compute": "#c55a11", "overhead": "#7f7f7f"}
ROOF = "#333333"
LABELS, LABEL_PIXELS, LABEL_WIDTH = 6, 15, 110


def plot(path: Path, title: str, report: Report) -> None:
    """Write a PNG: x operations/byte, y GFLOP/s, one dot per operation, its area its time.

    Raises:
        ConfigError: matplotlib is not installed, nothing was profiled, or the file cannot be
            written.
    """
    if not report.ops or report.limits is None:
        raise ConfigError("--plot: no operation was profiled, so there is nothing to draw.")
    figure = new_figure("--plot", 10, 6.5, title)
    axes = figure.subplots()
    lines = [line for line in report.ops if line.gflop_s > 0]
    _roofs(axes, report.limits, lines)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _dots(axes, lines)
    figure.draw_without_rendering()  # sets the positions of the dots
    _names(axes, lines)
    axes.set_xlabel("operations / byte moved")
    axes.set_ylabel("GFLOP/s")
    axes.grid(alpha=0.25, which="both")
    for handle in axes.legend(loc="lower right").legend_handles:
        handle.set_sizes([60])
    write_figure(path, figure)


def _roofs(axes: Any, limits: LimitsUsed, lines: list[OpLine]) -> None:
    """Draw the memory's slope, and one flat roof per type."""
    used = {line.dtype for line in lines}
    flops = {dtype: peak for dtype, peak in limits.flops_s.items() if peak and dtype in used}
    bandwidth = limits.bandwidth_bytes_s
    low = min([0.1, *(line.intensity for line in lines)]) / 2
    highest = max(flops.values(), default=bandwidth)
    high = max(4 * highest / bandwidth, 2 * max(line.intensity for line in lines))
    corners = [peak / bandwidth for peak in flops.values() if low < peak / bandwidth < high]
    x = np.sort([*np.geomspace(low, high), *corners])
    axes.plot(x, np.minimum(bandwidth * x, highest) / 1e9, color=ROOF, lw=1.6)
    words = "" if limits.source == "measured" else " (the best seen)"
    at = low * 2
    axes.annotate(
        f"memory: {bandwidth / 1e9:.0f} GB/s{words}", (at, bandwidth * at / 1e9), (6, -14),
        textcoords="offset points", color=ROOF,
    )  # fmt: skip
    for dtype, peak in flops.items():
        beyond = x[x >= peak / bandwidth]
        axes.plot(beyond, np.full_like(beyond, peak / 1e9), color=ROOF, lw=1.6)
        axes.annotate(
            f"{dtype}: {peak / 1e9:,.0f} GFLOP/s", (x[-1], peak / 1e9), (0, 4),
            textcoords="offset points", ha="right", color=ROOF,
        )  # fmt: skip


def _dots(axes: Any, lines: list[OpLine]) -> None:
    for bound, colour in COLOURS.items():
        of_kind = [line for line in lines if line.bound == bound]
        if of_kind:
            axes.scatter(
                [line.intensity for line in of_kind],
                [line.gflop_s for line in of_kind],
                s=[20 + 1600 * line.share for line in of_kind],
                color=colour,
                alpha=0.6,
                edgecolor="white",
                label=f"{bound}-bound" if bound != "overhead" else "far from both",
            )


def _names(axes: Any, lines: list[OpLine]) -> None:
    """Label the largest dots, on the side with more room, without overlaps."""
    middle = axes.bbox.x0 + axes.bbox.width * 0.6
    taken: list[tuple[float, float]] = []
    largest = sorted(lines, key=lambda line: -line.share)[:LABELS]
    for line in sorted(largest, key=lambda line: -line.gflop_s):  # downwards, off the roof
        x, y = axes.transData.transform((line.intensity, line.gflop_s))
        left = bool(x > middle)
        near = [other for at, other in taken if abs(at - x) < LABEL_WIDTH]
        height = min([y, *(other - LABEL_PIXELS for other in near)])
        taken.append((x, height))
        axes.annotate(
            f"{line.module or line.name} {line.share:.0%}", (line.intensity, line.gflop_s),
            (-16 if left else 16, (height - y) * 0.72 - 3), textcoords="offset points",
            fontsize=8, ha="right" if left else "left",
        )  # fmt: skip
