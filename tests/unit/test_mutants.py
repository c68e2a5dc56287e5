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
from tools.mutants.judge import PACKAGE, ROOMS, judge
ROOMS["scheduler"] = [["tests/unit/scheduler/test_scheduler.py"]]
edits = edits_of("scheduler/stop.py", (PACKAGE / "scheduler/stop.py").read_bytes())
edits = [edit for edit in edits if "<= request.max_total_tokens" in edit.after]
assert len(edits) == 1
for edit, verdict in judge(["scheduler", *edits], 1):
    print(verdict.by)
"""


def test_a_mistake_is_caught_and_the_sources_stay_as_they_are() -> None:
    path = ROOT / "src/quire/scheduler/stop.py"
    before = path.read_bytes()
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    unedited, edited = done.stdout.splitlines()
    assert unedited == ""
    assert edited.startswith("tests/unit/scheduler/test_scheduler.py::")
    assert path.read_bytes() == before
