"""Draw any benchmark's rows: one panel per number, one bar per row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quire.bench.results.plots import ANSWER, FIRST, FLAG
from quire.bench.results.report import Row, columns_of, flatten
from quire.core.extras import new_figure, write_figure

MOST_PANELS = 12
MOST_ROWS = 60


def draw(folder: Path, bench: str, rows: Sequence[Row]) -> Path:
    """Write `BENCH.png` with the median and range of each number.

    Raises:
        ConfigError: the file cannot be written.
    """
    return write_figure(folder / f"{bench}.png", overview(bench, rows))


def overview(bench: str, rows: Sequence[Row]) -> Any:
    """Return a figure of at most `MOST_ROWS` rows and `MOST_PANELS` numbers."""
    words = [f"quire bench {bench}", *(str(row["model"]) for row in rows[:1] if row.get("model"))]
    if len(rows) > MOST_ROWS:
        words.append(f"the first {MOST_ROWS} rows")
    shown = rows[:MOST_ROWS]
    numbers = _numbers(shown)[:MOST_PANELS]
    columns = min(3, max(1, len(numbers)))
    lines = -(-len(numbers) // columns) or 1
    height = lines * (1.2 + 0.25 * len(shown))
    figure = new_figure(FLAG, 4.5 * columns, height, ", ".join(words))
    labels = [_label(row, shown) for row in shown]
    panels = iter(np.atleast_1d(figure.subplots(lines, columns)).flat)
    for name, axes in zip(numbers, panels, strict=False):
        _bars(axes, name, shown, labels)
    for axes in panels:
        axes.set_visible(False)
    return figure


def _bars(axes: Any, name: str, rows: Sequence[Row], labels: Sequence[str]) -> None:
    for place, row in enumerate(rows):
        value = flatten(row).get(name)
        if value is None:
            continue
        ends = [flatten(row.get(end, {})).get(name, value) for end in ("min", "max")]
        axes.barh(place, value, height=0.7, color=ANSWER)
        axes.plot(ends, (place, place), "|-", color=FIRST)
    axes.set_yticks(range(len(rows)), labels, fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.locator_params(axis="x", nbins=4)
    axes.set_title(name, fontsize=9)
    axes.grid(alpha=0.3, axis="x")


def _numbers(rows: Sequence[Row]) -> list[str]:
    """Return the names of measured numbers: those with a range, or else all floats.

    A number that is 0 in all rows is left out.
    """
    found: dict[str, bool] = {}
    for row in rows:
        spans = flatten(row.get("min", {}))
        for name, value in flatten({n: row[n] for n in columns_of(row)}).items():
            measured = name in spans if spans else isinstance(value, float)
            if measured and isinstance(value, int | float) and not isinstance(value, bool):
                found[name] = found.get(name, False) or value != 0
    return [name for name, used in found.items() if used]


def _label(row: Row, rows: Sequence[Row]) -> str:
    """Return the settings in which this row differs from others."""
    spans = row.get("min", {})
    settings = [n for n in columns_of(row) if n not in spans and not isinstance(row[n], float)]
    return " ".join(f"{row[n]}" for n in settings if any(o.get(n) != row[n] for o in rows))
