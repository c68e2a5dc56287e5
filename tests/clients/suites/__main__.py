"""Run suites of client packages against this server: `python -m tests.clients.suites`.

Each suite runs in the first `--python` that has its package, for the packages exclude each other.
The server is `tests.clients.capable`, unless `--url` names one that runs. Prints a table.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.clients.capable import capable

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
SUITES = {
    "langchain_standard": ("langchain-tests", "langchain-openai", "langchain-anthropic"),
    "langchain_overflow": ("langchain-openai", "langchain-anthropic"),
    "openai_agents_runs": ("openai-agents",),
    "pydantic_ai_agents": ("pydantic-ai-slim",),
    "instructor_modes": ("instructor",),
    "litellm_overflow": ("litellm",),
}
"""Modules of tests, and the distributions that they need beside pytest and pytest-asyncio."""
_OPTIONS = (
    *("-q", "-c", os.devnull, "-p", "no:cacheprovider"),
    *(f"--rootdir={ROOT}", f"--confcutdir={FOLDER}"),
    *("-o", "asyncio_mode=auto", "-o", "asyncio_default_test_loop_scope=session"),
    *("-o", "junit_family=xunit2", "--tb=short"),
)
"""One event loop for all tests: clients share connections among models of one address."""


@dataclass
class Outcome:
    """What came of a suite's tests."""

    counts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients.suites")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--python", action="append", required=True, help="with the packages")
    parser.add_argument("--url", help="a server that runs, such as http://127.0.0.1:8000")
    parser.add_argument("--model", default="tiny", help="the name of its model")
    given = parser.parse_args()
    with _server(given.url) as url:
        found = {
            name: _run(name, given.python, {"QUIRE_URL": url, "QUIRE_MODEL": given.model})
            for name in given.suites or SUITES
        }
    print("| suite | passed | skipped | failed |\n|---|---|---|---|")
    for name, (versions, outcome) in found.items():
        counts = [outcome.counts[kind] for kind in ("passed", "skipped", "failed")]
        print(f"| {name}: {versions} | {' | '.join(map(str, counts))} |")
    for name, (_, outcome) in found.items():
        for reason, count in outcome.skipped.items():
            print(f"{name}: {count} skipped: {reason}")
        for test in outcome.failed:
            print(f"{name}: failed: {test}")
    return any(outcome.failed for _, outcome in found.values())


def _run(name: str, pythons: list[str], environment: dict[str, str]) -> tuple[str, Outcome]:
    """Return the versions that a suite ran with, and its outcome."""
    for python in pythons:
        if versions := _versions(python, SUITES[name]):
            break
    else:
        raise SystemExit(f"No --python has {' and '.join(SUITES[name])}.")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        subprocess.run(
            [python, "-m", "pytest", f"{FOLDER / name}.py", *_OPTIONS, f"--junitxml={report}"],
            check=False,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=sys.stderr,
        )
        return versions, _read(report)


def _versions(python: str, packages: tuple[str, ...]) -> str:
    """Return the packages' versions; an empty text if one is not there."""
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    done = subprocess.run(
        [python, "-c", code, *packages], check=False, capture_output=True, text=True
    )
    return ", ".join(map(" ".join, zip(packages, done.stdout.split(), strict=False)))


def _read(report: Path) -> Outcome:
    found = Outcome()
    for case in ET.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None:
            found.counts["skipped"] += 1
            found.skipped[skipped.get("message", "")] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            found.counts["failed"] += 1
            found.failed.append(f"{case.get('classname')}.{case.get('name')}")
        else:
            found.counts["passed"] += 1
    return found


@contextmanager
def _server(url: str | None) -> Iterator[str]:
    """Yield a server's address: `url`, or that of a capable one, which ends with the block."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory() as folder, capable(Path(folder)) as server:
        yield server.url


if __name__ == "__main__":
    sys.exit(main())
