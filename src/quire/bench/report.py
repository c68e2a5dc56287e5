"""Rows of results: repetitions summed up, shown as a table, written as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

Row = dict[str, Any]


def summarise(keys: Sequence[str], settings: Row, samples: Sequence[Row]) -> Row:
    """One row: `settings` and the samples' medians in the order of `keys`, then min and max.

    Args:
        keys: the row's field names; each is in `settings` or in every sample.
        samples: one a repetition; numbers, or mappings of names to numbers.

    Returns:
        `{**fields, "repetitions": n, "min": {...}, "max": {...}}`. The median of an even number of
        integers is the upper of the two in the middle, so that integers stay integers.
    """
    median, low, high = (_fold(samples, f) for f in (_median, min, max))
    return {
        **{key: settings[key] if key in settings else median[key] for key in keys},
        "repetitions": len(samples),
        "min": low,
        "max": high,
    }


def write_json(path: Path, row: Row) -> None:
    """Write `row` to `path`; where it ends in `.jsonl`, append it as one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, indent=2)
        path.write_text(text + "\n", encoding="utf-8")


def print_table(title: str, row: Row, out: TextIO) -> None:
    """The row as a table: settings with one value, measurements with median, min and max."""
    extra = {"repetitions", "min", "max", "machine", "commit", "command", "note", "bench", "date"}
    medians = _flatten({key: value for key, value in row.items() if key not in extra})
    low, high = _flatten(row["min"]), _flatten(row["max"])
    cells = [("", "median", "min", "max")]
    for name, value in medians.items():
        bounds = (_show(low[name]), _show(high[name])) if name in low else ("", "")
        cells.append((name, _show(value), *bounds))
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    count = row["repetitions"]
    print(f"{title} ({count} repetition{'s' if count != 1 else ''})", file=out)
    for name, *numbers in cells:
        shown = "  ".join(text.rjust(w) for text, w in zip(numbers, widths[1:], strict=True))
        print(f"  {name.ljust(widths[0])}  {shown}".rstrip(), file=out)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of `values` lie, interpolated; 0.0 if empty."""
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


def _fold(samples: Sequence[Row], function: Callable[[Sequence[Any]], Any]) -> Row:
    """`function` over the samples' values of each name, mappings entered."""
    folded: Row = {}
    for name, first in samples[0].items():
        values = [sample[name] for sample in samples]
        nested = isinstance(first, Mapping)
        folded[name] = _fold(values, function) if nested else function(values)
    return folded


def _flatten(row: Row, prefix: str = "") -> Row:
    """Nested names joined with a dot."""
    flat: Row = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= _flatten(dict(value), f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
