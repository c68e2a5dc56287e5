"""Plots of `quire bench serve`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quire.bench.results.report import Row, percentile
from quire.bench.serving.sender import Outcome
from quire.bench.serving.waits import gaps
from quire.core.extras import check_picture, log_axis, new_figure, write_figure

WAIT, FIRST, ANSWER, FAILED = "#c9c9c9", "#c55a11", "#1f4e79", "#b00020"
FLAG = "--plot-dir"
BINS = 80
SHORTEST = 0.05
"""Smallest gap in milliseconds; chunks that arrive together have this one."""
MOST_LANES = 400
"""Maximum lanes of a timeline; more would not be distinguishable."""


def check(folder: Path) -> None:
    """Check before the measurement that plots can be written.

    Raises:
        ConfigError: matplotlib is not installed, or the folder cannot be created.
    """
    check_picture(folder / "plot.png", FLAG)


def draw(folder: Path, measured: Sequence[tuple[Row, Sequence[Outcome]]]) -> list[Path]:
    """Write the PNGs of each rate; return their paths.

    `itl.png` and `timeline.png`; for several rates with the rate in their names, and also
    `throughput_latency.png`.

    Raises:
        ConfigError: a file cannot be written.
    """
    files = []
    for row, outcomes in measured:
        rate = f"_{row['request_rate']}" if len(measured) > 1 else ""
        files.append(write_figure(folder / f"itl{rate}.png", itl_histogram(_title(row), outcomes)))
        files.append(write_figure(folder / f"timeline{rate}.png", timeline(_title(row), outcomes)))
    if len(measured) > 1:
        figure = throughput_latency([row for row, _ in measured])
        files.append(write_figure(folder / "throughput_latency.png", figure))
    return files


def itl_histogram(title: str, outcomes: Sequence[Outcome]) -> Any:
    """Return a histogram of the gaps between chunks, with marked percentiles."""
    figure = new_figure(FLAG, 8, 4.5, title)
    axes = figure.subplots()
    found = [gap * 1e3 for outcome in outcomes for gap in gaps(outcome)]
    low, high = max(min(found, default=1.0), SHORTEST), max(found, default=10.0)
    axes.hist(
        np.maximum(found, low),
        bins=np.geomspace(low, max(high, low * 1.1), BINS).tolist(),
        color=ANSWER,
    )
    log_axis(axes)
    if found:  # nothing is found if each answer came as one chunk
        axes.set_yscale("log")
    for share, style in ((0.5, "-"), (0.9, "--"), (0.99, ":")):
        at = percentile(found, share)
        label = f"p{share * 100:.0f} {at:,.3g} ms"
        axes.axvline(max(at, low), color=FIRST, linestyle=style, label=label)
    axes.set_xlabel("between two chunks of a stream, ms")
    axes.set_ylabel("gaps")
    axes.legend()
    axes.grid(alpha=0.3)
    return figure


def timeline(title: str, outcomes: Sequence[Outcome]) -> Any:
    """Return a timeline with one lane per request, ordered by start."""
    lanes = sorted(outcomes, key=lambda o: o.start)
    shown = f"{title}, the first {MOST_LANES} requests" if len(lanes) > MOST_LANES else title
    lanes = lanes[:MOST_LANES]
    figure = new_figure(FLAG, 10, min(12.0, 2.0 + 0.12 * len(lanes)), shown)
    axes = figure.subplots()
    begin = min((o.start for o in lanes), default=0.0)
    for lane, o in enumerate(lanes):
        first = o.chunk_times[0] if o.chunk_times else o.end
        last = o.chunk_times[-1] if o.chunk_times else o.end
        parts = [(o.start, o.sent, WAIT), (o.sent, first, FIRST), (first, last, ANSWER)]
        if o.error is not None:
            parts = [(o.start, o.end, FAILED)]
        for left, right, colour in parts:
            axes.barh(lane, right - left, left=left - begin, height=0.8, color=colour)
    axes.set_xlabel("seconds")
    axes.set_ylabel("requests")
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    for name, colour in (
        *(("waits for a client", WAIT), ("to the first token", FIRST), ("answers", ANSWER)),
        ("failed", FAILED),
    ):
        axes.barh(0, 0, color=colour, label=name)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4)
    axes.grid(alpha=0.3, axis="x")
    return figure


def throughput_latency(rows: Sequence[Row]) -> Any:
    """Return throughput against TTFT and time per token, one point per rate."""
    figure = new_figure(FLAG, 10, 4.5, _title(rows[0], rate=False))
    rows = sorted(rows, key=lambda row: row["output_tok_s"])
    rates = [row["output_tok_s"] for row in rows]
    pairs = [
        (metric, name)
        for metric, name in (("ttft_ms", "TTFT"), ("tpot_ms", "time per token"))
        if metric in rows[0]
    ]
    for axes, (metric, name) in zip(np.atleast_1d(figure.subplots(1, 2)), pairs, strict=False):
        quantiles = [p for p in rows[0][metric] if p != "mean"]
        for p, colour in zip(quantiles, (ANSWER, FIRST, FAILED, "#548235"), strict=False):
            axes.plot(rates, [row[metric][p] for row in rows], "o-", color=colour, label=p)
        for row in rows:
            at = (row["output_tok_s"], row[metric][quantiles[-1]])
            axes.annotate(str(row["request_rate"]), at, (4, 4), textcoords="offset points")
        axes.set_xlabel("output tokens/s; at each point requests/s")
        axes.margins(x=0.1)
        axes.set_ylabel(f"{name}, ms")
        axes.set_ylim(bottom=0)
        axes.legend()
        axes.grid(alpha=0.3)
    return figure


def _title(row: Row, *, rate: bool = True) -> str:
    words = [str(row["model"]), str(row["dataset_name"]), f"{row['num_prompts']} requests"]
    if rate:
        words.append(f"{row['request_rate']} per second, {row['num_clients']} clients")
    return ", ".join(words)
