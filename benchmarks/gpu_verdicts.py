"""Which of the bars for GPUs the rows of `gpu_bars` pass; for `gpu_bars`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]


class Bar(NamedTuple):
    """A claim, and its number in some rows; None if nothing of it was measured.

    Attributes:
        least: the number must not be below it; or `most`: not above.
    """

    claim: str
    value: Callable[[Sequence[Row]], float | None]
    least: float | None = None
    most: float | None = None

    def verdict(self, rows: Sequence[Row]) -> str:
        """Return a line: passed, missed or not measured, the number and the bar."""
        found = self.value(rows)
        wanted = f">= {self.least}" if self.least is not None else f"<= {self.most}"
        if found is None:
            return f"not measured  {self.claim} {wanted}"
        below = self.least is not None and found < self.least
        above = self.most is not None and found > self.most
        return f"{'missed' if below or above else 'passed':12}  {self.claim} {wanted}: {found:.3g}"


def _decode(rows: Sequence[Row], model: str, *, graphs: bool = True) -> list[Row]:
    """Return the rows of one stream of a model in bfloat16."""
    return [
        row
        for row in rows
        if row["what"].startswith("decode 1 x") and row.get("model") == model
        and row.get("form") == "bf16" and row.get("graphs") == graphs
    ]  # fmt: skip


def _share(model: str) -> Callable[[Sequence[Row]], float | None]:
    def value(rows: Sequence[Row]) -> float | None:
        return max((row["bandwidth_share"] for row in _decode(rows, model)), default=None)

    return value


def _graphs(rows: Sequence[Row]) -> float | None:
    on, off = (_decode(rows, "llama-3.2-1b", graphs=on) for on in (True, False))
    return on[-1]["tok_s"] / off[-1]["tok_s"] if on and off else None


def _flash(rows: Sequence[Row]) -> float | None:
    """Return the smallest of flash's times over ours."""
    return min(
        (row["flash_seconds"] / row["seconds"] for row in rows if "flash_seconds" in row),
        default=None,
    )


def _differing(rows: Sequence[Row]) -> float | None:
    counts = [row["count"] for row in rows if "differ alone" in row["what"] and "count" in row]
    return float(sum(counts)) if counts else None


BARS = (
    Bar("1B bf16, one stream: share of the memory's speed", _share("llama-3.2-1b"), 0.80),
    Bar("8B bf16, one stream: share of the memory's speed", _share("llama-3.1-8b"), 0.85),
    Bar("attention: speed over torch's flash attention, the slowest case", _flash, 0.9),
    Bar("1B: tokens/s with graphs over those without", _graphs, 1.3),
    Bar("tokens, draws and rows that differ alone and in a batch", _differing, most=0),
)


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Return a line about each bar, and one about each row that failed."""
    failed = [f"failed        {row['what']}: {row['error'][:80]}" for row in rows if "error" in row]
    return [bar.verdict(rows) for bar in BARS] + failed
