"""Pytest plugin: `--forks N` runs the tests in N processes that share one collection.

Collecting takes seconds: it imports all that is tested. A process that is forked behind it has the
tests already. Each takes the next file of tests when it is through with one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import traceback
from collections.abc import Iterator
from itertools import chain
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NoReturn

import pytest

_NUMBER = struct.Struct("I")
_SET_PDEATHSIG = 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--forks", type=int, default=1, metavar="N", help="run the tests in N processes"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forked processes; in this one, as ever, without `--forks`."""
    count: int = session.config.getoption("--forks")
    if count < 2 or session.testsfailed or session.config.option.collectonly:
        return None
    if len(threads := os.listdir("/proc/self/task")) > 1:
        names = {Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in threads}
        raise pytest.UsageError(f"a test module starts threads, which --forks would lose: {names}")
    by_file: dict[object, list[pytest.Item]] = {}
    for item in session.items:
        by_file.setdefault(item.path, []).append(item)
    files = list(by_file.values())
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined] # all share it
    queue, end = os.pipe()
    os.set_blocking(end, False)  # a pipe holds the numbers of 16,000 files
    os.write(end, b"".join(map(_NUMBER.pack, range(len(files)))))
    os.close(end)
    children = {}
    for _ in range(count):
        pid, results = _fork(session, files, queue)
        children[results] = pid
    try:
        _report(session, children, queue)
    finally:
        _drain(queue)
        os.close(queue)
        for pid in children.values():
            os.waitpid(pid, 0)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True


def _drain(queue: int) -> None:
    """Leave the processes nothing more to do than what they have begun."""
    while os.read(queue, 1 << 16):
        pass


def _report(session: pytest.Session, children: dict[Connection, int], queue: int) -> None:
    """Pass on what the processes report, until all have ended."""
    hook = session.config.hook
    if terminal := session.config.pluginmanager.getplugin("terminalreporter"):
        terminal.showfspath = False  # files take turns
    running: dict[Connection, str] = dict.fromkeys(children, "")
    while running:
        for results in wait(list(running)):
            assert isinstance(results, Connection)
            try:
                name, data = results.recv()
            except EOFError:
                if test := running.pop(results):
                    why = f"the process that ran {test} has ended"
                    hook.pytest_runtest_logreport(report=_failure(test, why))
                continue
            if name == "start":
                running[results] = data["nodeid"]
                hook.pytest_runtest_logstart(**data)
            elif name == "report":
                report = hook.pytest_report_from_serializable(config=session.config, data=data)
                hook.pytest_runtest_logreport(report=report)
            elif name == "error":
                hook.pytest_runtest_logreport(report=_failure(running[results] or "--forks", data))
                running[results] = ""
            else:
                running[results] = ""
        if session.shouldfail:
            _drain(queue)


def _failure(test: str, why: str) -> pytest.TestReport:
    return pytest.TestReport(test, (test.partition("::")[0], None, test), {}, "failed", why, "call")


def _fork(
    session: pytest.Session, files: list[list[pytest.Item]], queue: int
) -> tuple[int, Connection]:
    """Start a process. Returns its pid, and the connection on which it reports."""
    read, write = Pipe(duplex=False)
    parent = os.getpid()
    pid = os.fork()
    if pid:
        write.close()
        return pid, read
    read.close()
    return _run(session, files, queue, write, parent)


def _run(
    session: pytest.Session,
    files: list[list[pytest.Item]],
    queue: int,
    results: Connection,
    parent: int,
) -> NoReturn:
    """In a child, run the files whose numbers it takes from the queue."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGINT)
        if os.getppid() != parent:
            os._exit(code)
        plugins = session.config.pluginmanager
        capture = plugins.getplugin("capturemanager")
        capture.stop_global_capturing()  # its files are the parent's
        capture.start_global_capturing()
        capture.suspend_global_capture(in_=True)
        plugins.unregister(name="terminalreporter")
        plugins.register(_Sender(session.config, results))
        try:
            _run_all(session, chain.from_iterable(_taken(files, queue)))
        finally:
            session._setupstate.teardown_exact(None)
        code = 0
    except BaseException:
        results.send(("error", traceback.format_exc()))
    finally:
        results.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _taken(files: list[list[pytest.Item]], queue: int) -> Iterator[list[pytest.Item]]:
    while data := os.read(queue, _NUMBER.size):
        [number] = _NUMBER.unpack(data)
        yield files[number]


def _run_all(session: pytest.Session, items: Iterator[pytest.Item]) -> None:
    item = next(items, None)
    while item is not None and not (session.shouldfail or session.shouldstop):
        following = next(items, None)  # its fixtures stay
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following


class _Sender:
    """A plugin of a child: sends the parent what the terminal would show."""

    def __init__(self, config: pytest.Config, results: Connection) -> None:
        self._config, self._results = config, results

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self._results.send(("start", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._results.send(("report", data))

    def pytest_runtest_logfinish(self) -> None:
        self._results.send(("end", None))
