"""docs/faults.md has every row, and a test that is there for each."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = range(1, 61)
NOT_BUILT = {40, 52, 53}
"""Faults of what Quire does not have yet."""


def table() -> dict[int, str]:
    """The tests' cell of each row."""
    cells: dict[int, str] = {}
    for line in (ROOT / "docs" / "faults.md").read_text().splitlines():
        found = re.fullmatch(r"\| (\d+) \|.*\| ([^|]*) \|", line)
        if found:
            assert int(found[1]) not in cells, line
            cells[int(found[1])] = found[2]
    return cells


def test_every_row_names_tests_that_are_there() -> None:
    cells = table()
    assert list(cells) == list(ROWS)
    for row, cell in cells.items():
        if row in NOT_BUILT:
            assert cell.startswith("not built yet: "), row
            continue
        references = re.findall(r"`([^`]+)`", cell)
        assert references, row
        for reference in references:
            file, _, name = reference.partition("::")
            source = (ROOT / "tests" / file).read_text()
            if name:
                assert f"def {name}(" in source, reference
            elif file.startswith("faults/"):
                assert f"def test_row_{row}_" in source, reference


def test_every_test_of_a_row_is_in_the_table() -> None:
    cells = table()
    for file in sorted((ROOT / "tests" / "faults").glob("test_*.py")):
        for row in re.findall(r"def test_row_(\d+)_", file.read_text()):
            assert f"faults/{file.name}" in cells[int(row)], (file.name, row)
