"""Rows of results: summarize repetitions, print tables, write JSON."""

from __future__ import annotations

import json
import statistics
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from quire.metrics.times import PARTS

Row = dict[str, Any]
_CIRCUMSTANCES = {
    *("repetitions", "min", "max", "machine", "commit", "command", "note", "bench", "date")
}
_PERCENT = {"gain", "share", "spread", "drift", "top1_agreement", "non_model_share", *PARTS} - {
    "queue"
}


def summarise(settings: Row, samples: Sequence[Row]) -> Row:
    """Return one row: settings and medians, then min and max.

    Args:
        samples: one per repetition: numbers, or mappings of names to numbers.

    Returns:
        `{**settings, **medians, "repetitions": n, "min": {...}, "max": {...}}`. The median of
        integers is one of them: of an even number, the upper one in the middle.
    """
    median, low, high = (fold(samples, f) for f in (_median, min, max))
    return {**settings, **median, "repetitions": len(samples), "min": low, "max": high}


def jsonl(name: str) -> Path:
    """Return the path of a file that rows are appended to: argparse's `type` of such a flag."""
    if not name.endswith(".jsonl"):
        raise ArgumentTypeError(f"{name!r}: rows are appended, so the name must end in .jsonl")
    return Path(name)


def write_json(path: Path, result: Row | Sequence[Row]) -> None:
    """Write a row or a list of rows to `path`; append one line per row if it ends in `.jsonl`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        rows = [result] if isinstance(result, dict) else result
        with path.open("a", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        text = json.dumps(result, ensure_ascii=False, allow_nan=False, indent=2)
        path.write_text(text + "\n", encoding="utf-8")


def print_table(title: str, row: Row, out: TextIO) -> None:
    """Print the row: settings with one value, measurements with median, min and max."""
    medians = flatten({key: row[key] for key in columns_of(row)})
    low, high = flatten(row["min"]), flatten(row["max"])
    cells = [("", "median", "min", "max")]
    for name, value in medians.items():
        bounds = (_show(low[name]), _show(high[name])) if name in low else ("", "")
        cells.append((name, _show(value), *bounds))
    # A long setting widens no column.
    widths = [max(len(line[i]) for line in cells if i == 0 or line[2]) for i in range(4)]
    count = row["repetitions"]
    print(f"{title} ({count} repetition{'s' if count != 1 else ''})", file=out)
    for name, *numbers in cells:
        shown = "  ".join(text.rjust(w) for text, w in zip(numbers, widths[1:], strict=True))
        print(f"  {name.ljust(widths[0])}  {shown}".rstrip(), file=out)


def print_grid(title: str, rows: Sequence[Row], out: TextIO) -> None:
    """Print rows, one line each, below the values that all of them share.

    Numbers have four significant digits, shares are in percent, and a true field is its name.
    """
    names = [n for n in columns_of(rows[0]) if not isinstance(rows[0][n], dict)]
    same = [n for n in names if len(rows) > 1 and all(row[n] == rows[0][n] for row in rows)]
    shown = [n for n in same if rows[0][n] is not None and rows[0][n] is not False]
    print(f"{title} ({len(rows)} row{'s' if len(rows) != 1 else ''})", file=out)
    if shown:
        facts = (n if rows[0][n] is True else f"{n} {_show_brief(n, rows[0][n])}" for n in shown)
        print("  " + ", ".join(facts), file=out)
    columns = [n for n in names if n not in same]
    lines = [columns, *([_show_brief(n, row[n]) for n in columns] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    text = [isinstance(rows[0][n], str) for n in columns]
    for line in lines:
        cells = (
            cell.ljust(w) if left else cell.rjust(w)
            for cell, w, left in zip(line, widths, text, strict=True)
        )
        print(("  " + "  ".join(cells)).rstrip(), file=out)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the quantile `share` (0 to 1) of `values`, interpolated; 0.0 if empty."""
    if not values:
        return 0.0
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    index = int(position)
    following = ordered[min(index + 1, len(ordered) - 1)]
    return ordered[index] + (following - ordered[index]) * (position - index)


def _median(values: Sequence[Any]) -> Any:
    whole = all(isinstance(value, int) for value in values)
    return statistics.median_high(values) if whole else statistics.median(values)


def fold(samples: Sequence[Row], function: Callable[[Sequence[Any]], Any]) -> Row:
    """Apply `function` to the values of each name, also inside mappings.

    A sample may lack a name: a short repetition has no sample of the event loop's lag.
    """
    folded: Row = {}
    for name, first in {k: v for sample in reversed(samples) for k, v in sample.items()}.items():
        values = [sample[name] for sample in samples if name in sample]
        nested = isinstance(first, Mapping)
        folded[name] = fold(values, function) if nested else function(values)
    return folded


def columns_of(row: Row) -> list[str]:
    """Return the names of settings and measurements, without the circumstances."""
    return [name for name in row if name not in _CIRCUMSTANCES]


def flatten(row: Row, prefix: str = "") -> Row:
    """Return the row with nested names joined by a dot."""
    flat: Row = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= flatten(dict(value), f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _show_brief(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return name if value else ""
    if not isinstance(value, float):
        return str(value)
    if name in _PERCENT:
        return f"{value:.2%}"
    digits = max(0, 4 - len(str(int(abs(value)))))
    return f"{value:,.{digits}f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"
