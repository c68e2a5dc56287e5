"""Row 56 and the security rules that can be read off the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src" / "quire"
WALL_CLOCK = {
    "engine/tracing.py",  # spans carry dates
    "server/app.py",  # `created` of the model
    "server/openai/generation.py",  # `created` of an answer
    "server/protocol.py",  # the Date header
    "server/snapshot.py",  # the dashboard shows the time of day
}
"""Files that tell the time of day; none measures with it."""


def calls(tree: ast.AST) -> Iterator[str]:
    """Functions and methods that are called, as they are written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def files() -> list[tuple[str, ast.AST]]:
    return [
        (path.relative_to(SOURCES).as_posix(), ast.parse(path.read_text()))
        for path in SOURCES.rglob("*.py")
    ]


@pytest.fixture(scope="module")
def sources() -> list[tuple[str, ast.AST]]:
    return files()


def test_row_56_waits_and_measurements_use_the_monotonic_clock(
    sources: list[tuple[str, ast.AST]],
) -> None:
    """So that no jump of the clock is noticed."""
    wall = {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now"}
    served = ("core/", "kv/", "scheduler/", "engine/", "server/", "executor/", "runner/")
    found = {
        name
        for name, tree in sources
        if name.startswith(served) and not wall.isdisjoint(calls(tree))
    }
    assert found <= WALL_CLOCK


def test_nothing_is_evaluated_or_unpickled(sources: list[tuple[str, ast.AST]]) -> None:
    forbidden = {"eval", "exec", "pickle.load", "pickle.loads", "marshal.loads", "yaml.load"}
    forbidden |= {"os.system", "shelve.open", "torch.load"}
    for name, tree in sources:
        assert forbidden.isdisjoint(calls(tree)), name


def test_the_server_fetches_no_url(sources: list[tuple[str, ast.AST]]) -> None:
    for name, tree in sources:
        if not name.startswith(("server/", "text/", "scheduler/", "kv/")):
            continue
        for node in ast.walk(tree):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                assert module.split(".")[0] not in {"httpx", "requests", "urllib3"}, name
                assert module != "urllib.request", name
