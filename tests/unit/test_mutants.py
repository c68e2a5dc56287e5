"""The command `make mutants`: its edits, and the tests' verdicts about them."""

from __future__ import annotations

import subprocess
import sys

from tools.mutants.__main__ import ROOT, all_edits, equivalents, keys
from tools.mutants.edits import edits_of

SOURCE = '''\
"""A module."""
LIMIT = 3

def f(count: int, items: list[int] = []) -> int:
    """Say 1 < 2."""
    assert count < LIMIT, "never"
    total = 0
    for item in items:
        if item >= 0 and not total:
            continue
        total += item
    return min(total, count - 1)
'''


def test_edits_are_the_mistakes_that_people_make() -> None:
    edits = edits_of("room/module.py", SOURCE.encode())
    changed = {(edit.line, " ".join(edit.after.split())) for edit in edits}
    assert changed == {
        (7, "total = 1"),
        (9, "if not (item >= 0 and (not total)):"),
        (9, "if ((item >= 0) or (not total)):"),
        (9, "if ((item >= 0)):"),
        (9, "if ((not total)):"),
        (9, "if (item > 0) and not total:"),
        (9, "if item >= 1 and not total:"),
        (9, "if item >= 0 and bool(total):"),
        (10, "break"),
        (10, "pass"),
        (11, "pass"),
        (11, "total -= item"),
        (12, "pass"),
        (12, "return max(total, count - 1)"),
        (12, "return min((total) + 1, count - 1)"),
        (12, "return min(total, (count - 1) + 1)"),
        (12, "return min(total, (count + 1))"),
        (12, "return min(total, count - 2)"),
        (12, "return min(total, count - 0)"),
    }
    assert {edit.scope for edit in edits} == {"f"}
    assert len({edit.name for edit in edits}) == len(edits)


def test_equivalent_edits_exist_and_are_explained() -> None:
    known = equivalents()
    assert known.keys() <= keys(all_edits()).keys()
    assert all(len(why) > 20 for why in known.values())


SCRIPT = """
from tools.mutants.edits import edits_of
from tools.mutants.judge import PACKAGE, judge
wanted = {
    "scheduler/results.py": "FinishReason.LENGTH|    pass",
    "scheduler/events.py": "tokens: int = 1",  # in no function's body
    "kv/bounds.py": "return max(blocks",  # no window, so no test reaches it
    "kv/manager.py": "super().__init__(config, lower)|        pass",  # a function with other cells
}
edits = []
for path, text in wanted.items():
    found = edits_of(path, (PACKAGE / path).read_bytes())
    edits += [edit for edit in found if text in "|".join([*edit.before.splitlines(), edit.after])]
assert len(edits) == len(wanted)
tests = [f"tests/unit/scheduler/test_{name}.py" for name in ("events", "scheduler")]
judge(edits, 2, lambda edit, verdict: print(edit.path, verdict.by, sep=": "), tests)
"""


def test_mistakes_are_caught_and_the_sources_stay_as_they_are() -> None:
    path = ROOT / "src/quire/scheduler/results.py"
    before = path.read_bytes()
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    by = dict(line.split(": ") for line in done.stdout.splitlines() if ".py: " in line)
    assert by["scheduler/results.py"].startswith("tests/unit/scheduler/test_scheduler.py::")
    assert by["scheduler/events.py"].startswith("tests/unit/scheduler/test_events.py::")
    assert by["kv/bounds.py"] == ""
    assert by["kv/manager.py"].startswith("tests/unit/scheduler/test_")
    assert path.read_bytes() == before
