"""Print the table of bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from benchmarks.bars.bar import Bar, Unit
from quire.bench.results.report import Row

COSTLIEST = 6
"""Number of parts of a step that are shown for a missed bar."""


def show(unit: Unit, value: float | None) -> str:
    """Return a number with its unit."""
    if value is None:
        return "–"
    match unit:
        case "share":
            return f"{100 * value:.1f} %"
        case "times":
            return f"{value:.2f}×"
        case "seconds":
            return f"{value:.2f} s"
        case "bytes":
            return f"{value / 1e6:,.0f} MB"


def show_bound(bar: Bar) -> str:
    """Return text such as "≥ 90.0 %"; empty without a bound."""
    if bar.bound is None:
        return ""
    return f"{'≤' if bar.at_most else '≥'} {show(bar.unit, bar.bound)}"


def line(bar: Bar, row: Row | str) -> list[str]:
    """Return a bar's cells: name, bound, median, lowest, highest, met, share of limit, details.

    Args:
        row: the measurement, or why there is none.
    """
    if isinstance(row, str):
        return [bar.name, show_bound(bar), "–", "", "", "not measured", "", row]
    shown = [show(bar.unit, v) for v in (row["value"], row["min"]["value"], row["max"]["value"])]
    met = {True: "met", False: "missed", None: ""}[row["met"]]
    where = row["where"]
    limit = f"{where['of_limit']:.0%}" if where else ""
    return [bar.name, show_bound(bar), *shown, met, limit, _details(row)]


def print_table(title: str, lines: Sequence[Sequence[str]], out: TextIO) -> None:
    """Print lines under headings, with numbers aligned to the right."""
    cells = [_HEADINGS, *lines]
    widths = [max(len(row[i]) for row in cells) for i in range(len(_HEADINGS))]
    print(title, file=out)
    for row in cells:
        texts = (
            text.rjust(width) if i in _NUMBERS else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  " + "  ".join(texts).rstrip(), file=out)


def print_where(row: Row, out: TextIO) -> None:
    """Print the costliest parts of a step with their limits."""
    where = row["where"]
    print(
        f"{row['row']}: {where['step_ms']:.2f} ms per step ({where['steps']} steps profiled), "
        f"{where['limit_ms']:.2f} at the limits ({where['bandwidth_gb_s']:.1f} GB/s)",
        file=out,
    )
    for part in where["parts"][:COSTLIEST]:
        text = f"  {part['name']:<44} {part['ms']:9.3f} ms  {part['ms'] / where['step_ms']:6.1%}"
        if part["limit_ms"] is not None:
            lost = part["ms"] - part["limit_ms"]
            text += (
                f"  at its limit {part['limit_ms']:9.3f} ({part['of_limit']:4.0%}), lost {lost:.3f}"
            )
        print(text, file=out)


def _details(row: Row) -> str:
    """Return further figures of a row in words."""
    if "tok_s" in row:
        rates = ", ".join(f"{name} {rate:,.1f}" for name, rate in row["tok_s"].items())
        gone = [text.split(" is not installed")[0] for text in row["missing"] or ()]
        return f"tok/s: {rates}" + (f"; without {', '.join(gone)}" if gone else "")
    if "bandwidth_gb_s" in row:
        return f"{row['decode_tok_s']:,.1f} tok/s at {row['bandwidth_gb_s']:.1f} GB/s"
    if "phases" in row:
        longest = sorted(row["phases"].items(), key=lambda phase: -phase[1])[:4]
        return ", ".join(f"{name} {seconds:.2f}" for name, seconds in longest)
    if "peak_rss_bytes" in row:
        return f"of {row['peak_rss_bytes'] / 1e6:,.0f} MB"
    return ""


_HEADINGS = ("row", "bar", "median", "lowest", "highest", "", "of limit", "")
_NUMBERS = {1, 2, 3, 4, 6}
