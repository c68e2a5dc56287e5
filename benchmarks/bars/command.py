"""Measure bars one after another. A failure does not lose the others' results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Protocol, TextIO

from benchmarks.bars.bar import Against, Bar, Floor, Seen, Subject, row_of
from benchmarks.bars.measure import NotMeasuredError
from benchmarks.bars.table import line, print_table, print_where
from quire.bench.results.report import Row
from quire.ops.isa import available_isas
from quire.system import env
from quire.system.records import dataclass

AMX = "amx"
NO_AMX = (
    "The bars are set for two AMX cores, and this machine has no AMX. So bars that arithmetic "
    "limits do not apply to it. `of limit` is the share of this machine's limit: the sum over all "
    "ops of max(bytes / bandwidth, FLOPs / peak)."
)


class Measure(Protocol):
    """`measure.Bench`."""

    def measure(self, subject: Subject) -> Seen: ...


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the table.

    Attributes:
        explain: `where.measure`.
        write: writes a row as soon as it is measured.
        amx: this machine has AMX, for which the bars are set.
    """

    bench: Measure
    explain: Callable[[Floor | Against], Row]
    write: Callable[[Row], None]
    amx: bool

    def all(self, bars: Sequence[Bar], title: str, out: TextIO) -> bool:
        """Measure and print; return whether all bars with a bound are met.

        If it is interrupted, it prints the finished rows.
        """
        rows: dict[str, Row | str] = {}
        try:
            for number, bar in enumerate(bars, 1):
                print(f"[{number}/{len(bars)}] {bar.name}: {bar.what}", file=sys.stderr, flush=True)
                row = rows[bar.name] = self._measure(bar)
                print("  " + "  ".join(filter(None, line(bar, row)[1:])), file=sys.stderr)
                if isinstance(row, dict):
                    try:
                        self._explain(bar, row)
                    finally:
                        self.write(row)
        finally:
            self._print([bar for bar in bars if bar.name in rows], rows, title, out)
        return all(isinstance(row, dict) and row["met"] is not False for row in rows.values())

    def _measure(self, bar: Bar) -> Row | str:
        """Return a row, or why there is none."""
        try:
            return row_of(bar, self.bench.measure(bar.subject), kernels_isa())
        except NotMeasuredError as error:
            return str(error)
        except Exception as error:  # the other benchmarks can still run
            return f"failed: {type(error).__name__}: {error}"

    def _explain(self, bar: Bar, row: Row) -> None:
        """Add where the time goes, if the bar is missed or set for another kind of machine."""
        wanted = row["met"] is False or (bar.many_tokens and not self.amx)
        if not wanted or not isinstance(bar.subject, Floor | Against):
            return
        try:
            row["where"] = self.explain(bar.subject)
        except Exception as error:
            print(f"  not profiled: {type(error).__name__}: {error}", file=sys.stderr)

    def _print(
        self, bars: Sequence[Bar], rows: dict[str, Row | str], title: str, out: TextIO
    ) -> None:
        print_table(title, [line(bar, rows[bar.name]) for bar in bars], out)
        if not self.amx:
            print(f"\n{NO_AMX}", file=out)
        for bar in bars:
            row = rows[bar.name]
            if isinstance(row, dict) and row["where"] and row["met"] is False:
                print(file=out)
                print_where(row, out)


def kernels_isa() -> str:
    """Return the instruction set that an engine chooses."""
    return env.cpu_isa() or available_isas()[-1]
