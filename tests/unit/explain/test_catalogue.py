"""The table of checks in docs/design/explain.md says what each cause has."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from benchmarks import explain_faults, explain_served
from quire.explain.analyse import explain
from quire.explain.report import Cause
from tests.unit.explain.made_faults import FAULTS
from tests.unit.explain.test_faults import CAUSES, SERVED
from tests.unit.explain.test_made_system import SYSTEMS

DOCS = Path(__file__).parents[3] / "docs/design/explain.md"
SILENT = {"starved", "none"}
"""Verdicts without a window."""


def rows() -> list[str]:
    """Return the table's rows, from the code."""
    injected: dict[str, list[str]] = {}
    for name, fault in explain_faults.FAULTS.items():
        injected.setdefault(fault.cause, []).append(name)
    for name, served in explain_served.FAULTS.items():
        injected.setdefault(served.causes[0], []).append(f"served {name}")
    for cause in SYSTEMS:
        injected.setdefault(cause, []).append("made files of the system")
    recorded = {cause for cause, _ in CAUSES.values()}
    recorded |= {cause for causes in SERVED.values() for cause in causes}
    made = {cause: explain(evidence).changes for cause, (evidence, _) in FAULTS.items()}
    lines = []
    for cause in get_args(Cause):
        if cause in SILENT:
            continue
        proves = any(change.fields for change in made.get(cause, [])[:1])
        window = "recorded" if cause in recorded else "made"
        names = ", ".join(injected.get(cause, [])) or "none"
        lines.append(f"| `{cause}` | {names} | {window} | {'yes' if proves else 'no flag'} |")
    return lines


def test_the_table_says_what_each_cause_has() -> None:
    missing = [row for row in rows() if row not in DOCS.read_text()]
    assert not missing, "docs/design/explain.md lacks:\n" + "\n".join(rows())
