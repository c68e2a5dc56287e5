"""Run tests against an edited file, each edit in a forked child of a process that is warm."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pkgutil
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, ModuleType

import pytest

from tools.mutants.edits import Edit

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/quire"
_WORLDS = "tests/simulation/test_worlds.py"
WORLDS = [f"{_WORLDS}::test_random_worlds[{batch}]" for batch in range(10)]
WORLDS += [f"{_WORLDS}::test_whatever_cannot_be_loaded_is_computed_again"]
ROOMS: dict[str, list[list[str]]] = {
    "scheduler": [["tests/unit/scheduler"], ["tests/unit/kv"], WORLDS],
    "kv": [["tests/unit/kv"], ["tests/unit/scheduler"], WORLDS],
    "sampling": [["tests/unit/sampling"], ["tests/unit/runner/test_runner.py"]],
}
"""By room, the tests that judge it, in stages: all of `make test`, though not all that it has."""
LAST = {"test_ahead.py"}
"""Slow files, which run at the end of their stage."""
WARM = ("hypothesis", "msgspec", "numpy", "torch", "xxhash", "llguidance")
WARM_ROOMS = ("core", "ops", "parallel", "checkpoint", "text")
"""What every child needs, and no edit changes: rooms that import none of `ROOMS`."""
TEST_SECONDS = 20
"""CPU time in which a test ends, unless it is in a loop; the slowest takes a fifth."""
MEMORY = 8 << 30
BROKEN, TIMED_OUT = 4, 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an edit.

    Attributes:
        by: the test that failed, "timeout" or "crash"; empty if the edit survived.
    """

    by: str
    seconds: float


def warm_up() -> None:
    """Import what all children share."""
    for name in WARM:
        importlib.import_module(name)
    for room in WARM_ROOMS:
        package = importlib.import_module(f"quire.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"quire.{room}."):
            with suppress(ImportError):  # it needs a package that is not installed
                importlib.import_module(module.name)
    edited = [name for name in sys.modules if name.startswith(tuple(f"quire.{r}" for r in ROOMS))]
    assert not edited, f"children would share {edited}"


def judge(edits: Sequence[Edit | str], jobs: int) -> Iterator[tuple[Edit | str, Verdict]]:
    """Yield each edit with its verdict, as they come; a room's name stands for no edit."""
    line, running = [*edits][::-1], dict[int, tuple[Edit | str, int, float]]()
    while line or running:
        while line and len(running) < jobs:
            edit = line.pop()
            pid, pipe = _fork(lambda edit=edit: _run(edit))  # type: ignore[misc]
            running[pipe] = edit, pid, time.monotonic()
        for pipe in select.select([*running], [], [])[0]:
            edit, pid, begin = running.pop(pipe)
            code, report = _join(pid, pipe)
            if code == BROKEN:
                raise RuntimeError(f"{edit} could not be judged:\n{report}")
            by = {0: report, TIMED_OUT: "timeout"}.get(code, "crash")
            yield edit, Verdict(by, time.monotonic() - begin)


def _run(edit: Edit | str) -> str:
    """In a child: the first test of the room that fails; empty if none does."""
    room = edit if isinstance(edit, str) else edit.path.partition("/")[0]
    watch = _Watch("")
    if isinstance(edit, Edit):
        path = PACKAGE / edit.path
        sys.meta_path.insert(0, _Edited(path, edit.apply(path.read_bytes())))
        watch.first = f"test_{path.name}"
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # `WARM` is imported already
    for stage in ROOMS[room]:
        status = pytest.main([*options, *stage], plugins=[watch])
        if watch.failed or status != pytest.ExitCode.OK:
            return watch.failed or f"pytest: {status!r}"
    return ""


class _Watch:
    """A pytest plugin: runs the edited module's own tests first, stops a test that is in a loop,
    and notes the first failure."""

    def __init__(self, first: str) -> None:
        self.first = first
        self.failed = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: (item.path.name in LAST, item.path.name != self.first))

    def pytest_runtest_setup(self) -> None:
        signal.signal(signal.SIGPROF, _time_out)
        signal.setitimer(signal.ITIMER_PROF, TEST_SECONDS)
        signal.signal(signal.SIGALRM, _time_out)  # for one that waits and takes no CPU time
        signal.alarm(6 * TEST_SECONDS)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = f"import of {report.nodeid}"


class _Edited(importlib.abc.MetaPathFinder):
    """Gives a file's module other source."""

    def __init__(self, path: Path, source: bytes) -> None:
        self._name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        self._loader = _Loader(self._name, str(path))
        self._loader.source = source

    def find_spec(
        self, fullname: str, path: object, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_loader(fullname, self._loader)


class _Loader(importlib.machinery.SourceFileLoader):
    source: bytes

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self.source, self.path, "exec")
        return code


def _fork(work: Callable[[], str]) -> tuple[int, int]:
    """Run `work` in a child. Returns its pid, and a pipe from which its answer can be read."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    code = BROKEN
    try:
        os.setpgid(0, 0)
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(quiet, number)
        answer, code = work(), 0
    except BaseException:
        answer = traceback.format_exc()
    os.write(write, answer.encode())
    os._exit(code)


def _join(pid: int, pipe: int) -> tuple[int, str]:
    """The exit code and the answer of a child that has ended, or is about to."""
    with os.fdopen(pipe) as file:
        report = file.read()
    _, status = os.waitpid(pid, 0)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what a test has left behind
    return os.waitstatus_to_exitcode(status), report


def _time_out(signum: int, frame: FrameType | None) -> None:
    os._exit(TIMED_OUT)
