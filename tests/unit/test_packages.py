"""What an installation brings: few packages, and none that only tests or extras need."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def installed(lines: list[str]) -> set[str]:
    """Return the packages that pip would install for these requirements."""
    found: set[str] = set()
    waiting = list(lines)
    while waiting:
        wanted = Requirement(waiting.pop())
        name = canonicalize_name(wanted.name)
        if name not in found and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            found.add(name)
            waiting += requires(name) or []
    return found


def test_the_packages_of_an_installation() -> None:
    packages = installed(PROJECT["dependencies"]) | {"quire"}
    assert len(packages) == 24, sorted(packages)
    assert not packages & {"torch", "transformers", "safetensors"}
    assert "twenty-four packages" in (ROOT / "README.md").read_text()
    assert "# Twenty-four packages" in (ROOT / "pyproject.toml").read_text()


def test_every_dependency_is_imported() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src/quire").rglob("*.py"))
    modules = {"pyyaml": "yaml"}
    for line in PROJECT["dependencies"]:
        name = Requirement(line).name
        module = modules.get(name, name)
        assert re.search(rf"^ *(import|from) {module}\b", sources, re.MULTILINE), name
