"""Run every task of `tools.newcomer.tasks` and write docs/newcomer.md.

    python -m tools.newcomer [--output FILE] [--only TEXT]

Everything runs in an empty folder with an empty home, so that nothing of this machine counts. What
differs between machines and runs is masked in the table. The exit status is 1 if a task fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.newcomer.tasks import SECTIONS, SERVE, TASKS, Task

START_SECONDS, TASK_SECONDS = 300.0, 300.0
WIDTH = 160
_MASKS = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"\b((?:cmpl|chatcmpl|resp|msg|call|fp)[-_])[0-9a-zA-Z]{6,}"), r"\1…"),
    (re.compile(r'"(created|created_at|completed_at)":\s*[\d.]+'), r'"\1":…'),
    (re.compile(r"\b\d{2}:\d{2}:\d{2}\b"), "…"),
    (re.compile(r"[\d.,]*\d(?= ?(?:%|s\b|ms\b|tok/s|[KMGT]i?B\b|GB/s|tokens in the KV))"), "…"),
    (re.compile(r"\d+(?= (?:ok|warn)\b)"), "…"),
    (re.compile(r"all \d+ sequences.*|\d[\d,]* × .*"), "…"),
)
"""What is not the same everywhere, and what the table shows for it."""


def main() -> int:
    """Run the tasks; write the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.newcomer")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table there")
    parser.add_argument("--only", default="", metavar="TEXT", help="tasks that contain TEXT")
    args = parser.parse_args()
    chosen = [task for task in TASKS if args.only in task.typed]
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder, _home(Path(folder)) as home:
        shown = {task.typed: home.run(task) for task in chosen}
    failed = [typed for typed, (good, _) in shown.items() if not good]
    print(f"{len(chosen)} tasks, {len(failed)} failed")
    if args.output is not None and not args.only and not failed:
        args.output.write_text(_document({typed: text for typed, (_, text) in shown.items()}))
    return 1 if failed else 0


class Home:
    """A newcomer's folder and shell."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self._port = str(port)
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        here = str(Path(sys.executable).parent)
        path = f"{here}:{kept.get('PATH', '')}"
        self.environment = {**kept, "HOME": str(folder), "HF_HUB_OFFLINE": "1", "PATH": path}

    def command(self, typed: str) -> list[str]:
        """The words that run a line, with the server's real port."""
        return ["bash", "-o", "pipefail", "-c", typed.replace("8000", self._port)]

    def run(self, task: Task) -> tuple[bool, str]:
        """Whether a task came back as it has to, and what came back, masked."""
        done = subprocess.run(
            self.command(task.typed), cwd=self.folder, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=TASK_SECONDS, check=False, errors="replace",
        )  # fmt: skip
        said = done.stdout.strip().replace(self._port, "8000")
        found = re.search(task.expected, said, re.MULTILINE)
        good = found is not None and done.returncode == task.status
        good = good and "Traceback" not in said
        print(f"{'ok  ' if good else 'FAIL'}  {task.typed}")
        if not good:
            print(f"      status {done.returncode}, expected {task.status}: {said[-800:]}")
        return good, _shown(said, found.start() if found else 0, task)


@contextmanager
def _home(folder: Path) -> Iterator[Home]:
    """A folder with what the tasks name, and the server running."""
    (folder / "empty-folder").mkdir()
    (folder / "notes.txt").write_text("A shopping list.\n")
    _write_adapter(folder / "adapter")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        home = Home(folder, probe.getsockname()[1])
    with (folder / "serve.log").open("wb") as log:
        server = subprocess.Popen(
            home.command(f"exec {SERVE}"), cwd=folder, env=home.environment, stdout=log, stderr=log
        )
    try:
        _wait_for(home, server)
        yield home
    finally:
        server.terminate()
        server.wait()


def _wait_for(home: Home, server: subprocess.Popen[bytes]) -> None:
    url = home.command("http://127.0.0.1:8000/health")[-1]
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except (urllib.error.URLError, OSError):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit((home.folder / "serve.log").read_text()) from None
            time.sleep(0.2)
        else:
            return


def _write_adapter(folder: Path) -> None:
    from quire.bench.adapters import random_adapter
    from quire.resolve.arguments import EngineArgs
    from quire.resolve.engine import resolve
    from quire.system.hardware import detect

    model = resolve(EngineArgs(), detect()).config.model
    with random_adapter(model, 4) as adapter:
        assert adapter is not None
        shutil.copytree(adapter.lora_path, folder)


def _shown(said: str, start: int, task: Task) -> str:
    """The lines from the one that matched, masked and cut, without what a busy machine warns of."""
    start = said.rfind("\n", 0, start) + 1
    lines = [line for line in said[start:].splitlines() if line and not line.startswith("WARNING")]
    text = "\n".join(lines[: task.lines])
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    cut = [line if len(line) <= WIDTH else f"{line[:WIDTH]} …" for line in text.splitlines()]
    ended = f"(exit {task.status})" if task.status else ""
    return "\n".join([*cut, ended]).strip()


_INTRODUCTION = f"""\
{len(TASKS)} tasks with the model that ships in the package. `make newcomer` runs them and writes
this page. It fails if an output is not as expected. Numbers that differ between machines are
replaced by …, and long lines are cut.
"""


def _document(shown: dict[str, str]) -> str:
    """docs/newcomer.md."""
    parts = [
        "# Forty commands and their output\n",
        _INTRODUCTION,
        f"Tasks with port 8000 use this server:\n\n```console\n$ {SERVE}\n```\n",
    ]
    for section, tasks in SECTIONS.items():
        parts.append(f"## {section}\n\n| command | output |\n|---|---|")
        parts += [f"| {_cell(task.typed)} | {_cell(shown[task.typed])} |" for task in tasks]
        parts.append("")
    return "\n".join(parts)


def _cell(text: str) -> str:
    """Code in a table's cell: a part per line."""
    escaped = (line.replace("|", "\\|").replace("`", "'") for line in text.splitlines())
    return "<br>".join(f"`` {line} ``" for line in escaped)


if __name__ == "__main__":
    sys.exit(main())
