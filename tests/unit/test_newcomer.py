"""The page of a newcomer's tasks, and the tool that writes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.newcomer.__main__ import Home, _cell
from tools.newcomer.tasks import SECTIONS, SERVE, TASKS, Task

PAGE = Path(__file__).parents[2] / "docs" / "newcomer.md"


def test_the_page_shows_every_task() -> None:
    page = PAGE.read_text()
    assert len(TASKS) == len({task.typed for task in TASKS}) == 40
    assert f"$ {SERVE}\n" in page
    rows = re.findall(r"^\| (``.*?``) \| (.*) \|$", page, re.MULTILINE)
    assert [typed for typed, _ in rows] == [_cell(task.typed) for task in TASKS]
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == list(SECTIONS)


@pytest.mark.parametrize(
    ("task", "good", "shown"),
    [
        (Task("quire serv", r"did you mean serve\?", 2), True, "error: unknown command serv"),
        (Task("quire serv", r"did you mean chat\?", 2), False, "error:"),
        (Task("quire serv", r"did you mean serve\?", 0), False, "error:"),
        (Task("echo Traceback", "Traceback"), False, "Traceback"),
        (Task("echo port 8000 took 3.14 s", "port 8000"), True, "port 8000 took … s"),
        (Task("printf 'a\\nb\\nc\\nd'", "b"), True, "b\nc"),
    ],
)
def test_what_comes_back_is_judged_and_masked(
    task: Task, good: bool, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged, text = Home(tmp_path, 12345).run(task)
    assert judged is good
    assert text.startswith(shown)
    assert ("FAIL" in capsys.readouterr().out) is not good
