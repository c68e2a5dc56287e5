"""What slows an engine's Python code: debugging settings, tracers and profilers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from quire.system.proc import words

_VARIABLES = (
    *("PYTHONDEVMODE", "PYTHONTRACEMALLOC", "PYTHONASYNCIODEBUG", "PYTHONMALLOC"),
    *("PYTHONDUMPREFS", "COVERAGE_PROCESS_START"),
)
"""Environment variables that turn on checks of each allocation, call or line."""
_HARMLESS = {"", "0", "default", "malloc", "pymalloc"}
_OPTIONS = ("dev", "tracemalloc")
_MODULES = {"pdb", "trace", "cProfile", "profile", "coverage", "viztracer", "scalene"}
_MONITORS = range(6)
"""Identifiers of `sys.monitoring`."""


def debugging(pids: Iterable[int], root: Path) -> list[str]:
    """Return the settings of processes that slow Python down, such as "PYTHONDEVMODE"."""
    found: dict[str, None] = {}
    for pid in pids:
        folder = root / f"proc/{pid}"
        found |= dict.fromkeys([*_variables(folder / "environ"), *_flags(folder / "cmdline")])
    return list(found)


def tracing() -> list[str]:
    """Return what watches each call or line of this thread."""
    found = []
    if sys.gettrace() is not None:
        found.append("sys.settrace (a debugger, coverage)")
    if sys.getprofile() is not None:
        found.append("sys.setprofile (cProfile)")
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    if monitoring is not None:
        names = (monitoring.get_tool(number) for number in _MONITORS)
        found += [f"sys.monitoring ({name})" for name in names if name]
    return found


def _variables(file: Path) -> Iterator[str]:
    for entry in words(file):
        name, _, value = entry.partition("=")
        if name in _VARIABLES and value not in _HARMLESS:
            yield name


def _flags(file: Path) -> Iterator[str]:
    """Yield `-X dev` or `-m cProfile` of a command line of Python."""
    for flag, value in pairwise(words(file)):
        if flag == "-X" and value.partition("=")[0] in _OPTIONS:
            yield f"-X {value}"
        if flag == "-m":  # the words behind it are the program's
            if value in _MODULES:
                yield f"-m {value}"
            return
