"""Run tests against edits, each in a forked child of a process that has collected all tests.

One pass without edits records which lines each test reaches. A child gives the functions of the
edited file their new code, and runs only the tests that reach the edited statement.
"""

import ast
import gc
import importlib
import importlib.abc
import importlib.util
import os
import pickle
import pkgutil
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, NoReturn

import pytest

from tools.mutants.children import TIMED_OUT, Tell, fork, in_children, join
from tools.mutants.edits import Edit

if TYPE_CHECKING:
    from _typeshed import TraceFunction

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/quire"
ROOMS = ("scheduler", "kv", "sampling")
TESTS = [f"tests/unit/{room}" for room in (*ROOMS, "engine")]
TESTS += [f"tests/unit/runner/test_{name}.py" for name in ("runner", "kv_host", "kv_peer")]
TESTS += ["tests/simulation"]
# It measures the memory of the process, which recording fills.
_MEASURES = "tests/unit/runner/test_kv_host.py::test_slots_that_nobody_uses_cost_no_memory"
TESTS += [f"--deselect={_MEASURES}"]
"""Tests that judge: all of `make test`, though not all that it has."""
WARM = ("hypothesis", "msgspec", "numpy", "torch", "xxhash", "llguidance")
WARM_ROOMS = ("core", "ops", "parallel", "checkpoint", "text")
"""What every child needs, and no edit changes: rooms that import none of `ROOMS`."""
TEST_SECONDS = 10
"""CPU time in which a test ends, unless it is in a loop; the slowest takes a fifth."""
RECORDED_SECONDS = 1.0
"""CPU time for which a test's lines are recorded. A longer test counts as one that reaches all
lines of the files in which it was seen."""

Lines = set[tuple[str, int]]
"""Files, relative to the package, and lines."""


def judge(edits: Sequence[Edit], jobs: int, tell: Tell, tests: Sequence[str] = TESTS) -> None:
    """Pass each edit with its verdict to `tell`, as they come.

    Raises:
        RuntimeError: a test fails without any edit, or an edit could not be judged.
    """
    _warm_up()
    inside = [edit for edit in edits if _in_function(edit)]
    outside = [edit for edit in edits if edit not in inside]
    in_children(outside, jobs, lambda edit: _import_and_test(edit, tests), tell)
    judging = _Judging(inside, jobs, tell)
    pytest.main([*_OPTIONS, *tests], plugins=[judging])
    if judging.error:
        raise RuntimeError(judging.error)


_OPTIONS = ["-x", "-qq", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--no-summary"]
_OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # `WARM` is imported already


def _warm_up() -> None:
    """Import what all children share."""
    for name in WARM:
        with suppress(ImportError):  # torch is an extra
            importlib.import_module(name)
    for room in WARM_ROOMS:
        package = importlib.import_module(f"quire.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"quire.{room}."):
            with suppress(ImportError):  # it needs a package that is not installed
                importlib.import_module(module.name)
    edited = [name for name in sys.modules if name.startswith(tuple(f"quire.{r}" for r in ROOMS))]
    assert not edited, f"children would share {edited}"


class _Judging:
    """A pytest plugin that judges edits instead of running the collected tests."""

    def __init__(self, edits: Sequence[Edit], jobs: int, tell: Tell) -> None:
        self._edits, self._jobs, self._tell = edits, jobs, tell
        self.error = "no tests were collected"

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        session.config.pluginmanager.unregister(name="terminalreporter")
        items = {item.nodeid: item for item in session.items}
        begin = time.monotonic()
        reached, self.error = _recorded(session.items)
        print(f"recorded {len(reached)} tests in {time.monotonic() - begin:.0f} s", flush=True)
        if self.error:
            return True
        live = _live_functions()

        def patch_and_test(edit: Edit) -> str:
            for function, code in _new_code(edit, live):
                function.__code__ = code
            return _first_failure([items[name] for name in _judges(edit, reached)])

        try:
            in_children(self._edits, self._jobs, patch_and_test, self._tell)
        except RuntimeError as error:  # pytest would only print it
            self.error = str(error)
        return True


@dataclass(frozen=True, slots=True)
class _Reach:
    """What a test did without any edit: the lines and whole files that it reached, its CPU time."""

    lines: Lines
    whole: set[str]
    seconds: float


def _recorded(items: Sequence[pytest.Item]) -> tuple[dict[str, _Reach], str]:
    """In a child, run all tests. Returns what each reached, and an error if one failed."""
    pid, pipe = fork(lambda: _record(items))
    code, answer = join(pid, pipe)
    if code:
        return {}, f"recording failed:\n{answer.decode()}"
    reached, failed = pickle.loads(answer)
    return reached, f"{failed} fails without any edit" if failed else ""


def _record(items: Sequence[pytest.Item]) -> bytes:
    lines: Lines = set()
    end = 0.0

    def trace(frame: FrameType, event: str, arg: object) -> "TraceFunction | None":
        path = _path(frame.f_code.co_filename)
        if path is None:
            return None
        if time.process_time() > end:
            sys.settrace(None)
            return None

        def line(frame: FrameType, event: str, arg: object) -> "TraceFunction":
            lines.add((path, frame.f_lineno))
            return line

        return line

    reached = {}
    threading.settrace(trace)
    for item in items:
        lines.clear()
        begin = time.process_time()
        end = begin + RECORDED_SECONDS
        sys.settrace(trace)
        failed = _first_failure([item])
        sys.settrace(None)
        # One that counts bytes or calls has counted those of `trace`.
        if failed and _first_failure([item]):
            return pickle.dumps(({}, failed))
        seconds = time.process_time() - begin
        whole = {path for path, _ in lines} if seconds > RECORDED_SECONDS else set()
        reached[item.nodeid] = _Reach(set(lines), whole, seconds)
    return pickle.dumps((reached, ""))


@cache
def _path(filename: str) -> str | None:
    """Return the path of a file of `ROOMS`, relative to the package; None for others."""
    path = Path(filename)
    if path.is_relative_to(PACKAGE) and path.relative_to(PACKAGE).parts[0] in ROOMS:
        return path.relative_to(PACKAGE).as_posix()
    return None


def _judges(edit: Edit, reached: dict[str, _Reach]) -> list[str]:
    """Return the tests that reach the edited statement: first its module's own, then by time."""
    statement = {(edit.path, line) for line in _statement(edit)}
    own = f"/test_{Path(edit.path).name}:"
    names = [
        name
        for name, reach in reached.items()
        if edit.path in reach.whole or not statement.isdisjoint(reach.lines)
    ]
    return sorted(names, key=lambda name: (own not in name, reached[name].seconds))


@cache
def _source(path: str) -> bytes:
    return (PACKAGE / path).read_bytes()


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse(_source(path))


def _statement(edit: Edit) -> range:
    """Return the lines of the innermost statement around an edit, without the body of a block."""
    around = [
        node
        for node in ast.walk(_tree(edit.path))
        if isinstance(node, ast.stmt) and node.lineno <= edit.line <= (node.end_lineno or 0)
    ]
    node = max(around, key=lambda node: node.lineno)
    body = getattr(node, "body", None)
    end = body[0].lineno - 1 if body else node.end_lineno or 0
    return range(node.lineno, max(end, edit.line) + 1)


def _in_function(edit: Edit) -> bool:
    """Return whether an edit changes a function's body, not its signature or its module.

    A function can only get code with the same free variables, which `super()` is one of.
    """
    return any(
        isinstance(node, ast.FunctionDef)
        and node.body[0].lineno <= edit.line <= (node.end_lineno or 0)
        for node in ast.walk(_tree(edit.path))
    ) and all(old.co_freevars == new.co_freevars for old, new in _codes(edit))


Place = tuple[str, str, int]
"""A function's file, qualified name and first line."""


def _live_functions() -> dict[Place, list[FunctionType]]:
    """Return the functions of `ROOMS`, wherever they are: wrapped or in properties, too."""
    gc.unfreeze()
    found: dict[Place, list[FunctionType]] = defaultdict(list)
    for thing in gc.get_objects():
        if type(thing) is FunctionType and _path(thing.__code__.co_filename):
            found[_place(thing.__code__)].append(thing)
    gc.freeze()
    return found


def _place(code: CodeType) -> Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _new_code(
    edit: Edit, live: dict[Place, list[FunctionType]]
) -> Iterator[tuple[FunctionType, CodeType]]:
    """Yield the functions of the edited file, each with its new code."""
    for before, after in _codes(edit):
        for function in live[_place(before)]:
            yield function, after


def _codes(edit: Edit) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the functions of the edited file, before and after."""
    source = _source(edit.path)
    old, new = (
        _functions(compile(text, str(PACKAGE / edit.path), "exec"))
        for text in (source, edit.apply(source))
    )
    yield from zip(old, new, strict=True)


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Yield the functions of a module or class, without those inside functions."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & CO_NEWLOCALS:
                yield constant
            else:
                yield from _functions(constant)


def _import_and_test(edit: Edit, tests: Sequence[str]) -> str:
    """Import the edited file, then collect and run all tests."""
    sys.meta_path.insert(0, _Edited(PACKAGE / edit.path, edit.apply(_source(edit.path))))
    watch = _Watch()
    status = pytest.main([*_OPTIONS, *tests], plugins=[watch])
    return watch.failed or ("" if status == pytest.ExitCode.OK else f"pytest: {status!r}")


def _first_failure(items: Sequence[pytest.Item]) -> str:
    """Run tests up to the first that fails, and return its name; empty if none does."""
    if not items:
        return ""
    watch = _Watch()
    plugins = items[0].config.pluginmanager
    plugins.register(watch)
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if watch.failed:
            break
    plugins.unregister(watch)
    return watch.failed


class _Watch:
    """A pytest plugin: stops a test that is in a loop, and notes the first failure."""

    failed = ""

    def pytest_runtest_setup(self) -> None:
        signal.signal(signal.SIGPROF, lambda *_: _time_out())
        signal.setitimer(signal.ITIMER_PROF, TEST_SECONDS)
        # One that waits takes no CPU time. A process that is stopped counts no seconds.
        seconds = iter(range(12 * TEST_SECONDS, 0, -1))
        signal.signal(signal.SIGALRM, lambda *_: None if next(seconds, 0) else _time_out())
        signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)

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
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_loader(fullname, self._loader)


class _Loader(SourceFileLoader):
    source: bytes

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self.source, self.path, "exec")
        return code


def _time_out() -> NoReturn:
    os._exit(TIMED_OUT)
