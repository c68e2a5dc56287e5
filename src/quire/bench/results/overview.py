"""Draw any benchmark's rows: one panel per number, one bar per row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quire.bench.results.plots import ANSWER, FIRST, new_figure, write_figure
from quire.bench.results.report import Row, columns_of, flatten

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
    shown = rows[:MOST_ROWS]
    numbers = _numbers(shown)[:MOST_PANELS]
    columns = min(3, max(1, len(numbers)))
    lines = -(-len(numbers) // columns) or 1
    figure = new_figure(4.5 * columns, lines * (1.2 + 0.25 * len(shown)), _title(bench, rows))
    panels = list(np.atleast_1d(figure.subplots(lines, columns)).flat)
    labels = [_label(row, shown) for row in shown]
    for axes, name in zip(panels, numbers, strict=False):
        _bars(axes, name, shown, labels)
    for axes in panels[len(numbers) :]:
        axes.set_visible(False)
    return figure


def _bars(axes: Any, name: str, rows: Sequence[Row], labels: Sequence[str]) -> None:
    for place, row in enumerate(rows):
        value = flatten(row).get(name)
        if value is None:
            continue
        low = flatten(row.get("min", {})).get(name, value)
        high = flatten(row.get("max", {})).get(name, value)
        axes.barh(place, value, height=0.7, color=ANSWER)
        axes.plot((low, high), (place, place), "|-", color=FIRST)
    axes.set_yticks(range(len(rows)), labels, fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_title(name, fontsize=9)
    axes.grid(alpha=0.3, axis="x")


def _numbers(rows: Sequence[Row]) -> list[str]:
    """Return the names of measured numbers: those with a range, or else all floats."""
    found: dict[str, None] = {}
    for row in rows:
        spans = flatten(row.get("min", {}))
        for name, value in flatten({n: row[n] for n in columns_of(row)}).items():
            if (name in spans if spans else isinstance(value, float)) and _is_number(value):
                found[name] = None
    return list(found)


def _label(row: Row, rows: Sequence[Row]) -> str:
    """Return the settings in which this row differs from others."""
    spans = row.get("min", {})
    settings = [n for n in columns_of(row) if n not in spans and not isinstance(row[n], float)]
    different = (n for n in settings if any(other.get(n) != row[n] for other in rows))
    return " ".join(f"{row[name]}" for name in different)


def _title(bench: str, rows: Sequence[Row]) -> str:
    left = len(rows) - MOST_ROWS
    model = rows[0].get("model") if rows else None
    words = [f"quire bench {bench}", *([str(model)] if model else [])]
    return ", ".join([*words, f"the first {MOST_ROWS} rows"] if left > 0 else words)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
