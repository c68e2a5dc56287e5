"""docs/faults.md has every row, and a test that is there for each."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUM_ROWS = 67


def table() -> dict[int, str]:
    """The tests' cell of each row."""
    cells: dict[int, str] = {}
    for line in _text("faults.md").splitlines():
        found = re.fullmatch(r"\| (\d+) \|.*\| ([^|]*) \|", line)
        if found:
            assert int(found[1]) not in cells, line
            cells[int(found[1])] = found[2]
    return cells


def test_every_row_names_tests_that_are_there() -> None:
    cells = table()
    assert list(cells) == list(range(1, NUM_ROWS + 1))
    for row, cell in cells.items():
        references = re.findall(r"`([^`]+)`", cell)
        assert references, row
        for reference in references:
            file, _, name = reference.partition("::")
            source = (ROOT / "tests" / file).read_text()
            if name:
                assert f"def {name}(" in source, reference
            elif file.startswith("faults/"):
                assert f"def test_row_{row}_" in source, reference


def test_the_readme_counts_them() -> None:
    assert f"[{NUM_ROWS} faults and their tests]" in (ROOT / "README.md").read_text()


def test_every_security_rule_names_tests_that_are_there() -> None:
    text = _text("faults.md")
    _, _, section = text.partition("## Security")
    rows = re.findall(r"^\| (.+) \| (.+) \|$", section.partition("##")[0], re.MULTILINE)
    rules = [row for row in rows if row[0] != "rule" and not row[0].startswith("--")]
    assert len(rules) >= 12
    for rule, cell in rules:
        references = re.findall(r"`(\S+)::(\w+)`", cell)
        assert references, rule
        for file, name in references:
            assert f"def {name}(" in (ROOT / "tests" / file).read_text(), name


def test_every_test_of_a_row_is_in_the_table() -> None:
    cells = table()
    for file in sorted((ROOT / "tests" / "faults").glob("test_*.py")):
        for row in re.findall(r"def test_row_(\d+)_", file.read_text()):
            assert f"faults/{file.name}" in cells[int(row)], (file.name, row)


def test_errors_that_are_documented_are_raised_and_the_others_too() -> None:
    documented = re.findall(r"^\|(?: \d+ \|)? (`.+?`) \|", _text("errors.md"), re.MULTILINE)
    codes = {code for cell in documented for code in re.findall(r"`(\w+)`", cell)}
    assert len(codes) > 12
    sources = "".join(path.read_text() for path in (ROOT / "src" / "quire").rglob("*.py"))
    raised = set(re.findall(r"\bcode ?= ?\"(\w+)\"", sources))
    assert codes == raised


def _text(name: str) -> str:
    return (ROOT / "docs" / name).read_text()
