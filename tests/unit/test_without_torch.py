"""Without torch, what is skipped, and what still fails."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.without_torch import NEED_TORCH, ROOT, SkipMissing

WHOLE_ENGINES = ("clients", "e2e", "faults", "fuzz", "simulation")
"""Folders of tests that compare nothing with torch, except these modules."""
COMPARED = {
    "e2e/test_machines.py",
    "e2e/test_pooling.py",
    "e2e/test_prompt_embeds.py",
    "e2e/test_ray.py",
}
FOR_TORCH = ("quire.ops.torch_ops", "quire.profile.torch_profiler", "quire.bench.peers")


def imports(name: str, file: str) -> None:
    """Ask the finder for a module, as an import statement in `file` does."""
    code = compile("find_spec(name)", str(ROOT / file), "exec")
    exec(code, {"find_spec": SkipMissing.find_spec, "name": name})


@pytest.mark.parametrize("file", ["tests/native.py", "src/quire/ops/torch_ops/reference.py"])
def test_modules_for_torch_are_skipped(file: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=f"{file} needs torch"):
        imports("torch", file)
    imports("no_such_module", file)


def test_the_cpu_path_fails() -> None:
    imports("torch", "src/quire/runner/runner.py")


def test_whole_engines_are_tested_without_torch() -> None:
    """A module that imports torch, or a helper that does, is skipped by `make test-light`."""
    modules = [
        path for name in WHOLE_ENGINES for path in (ROOT / "tests" / name).rglob("test_*.py")
    ]
    assert len(modules) > 60
    found = {path.relative_to(ROOT / "tests").as_posix() for path in modules if needs_torch(path)}
    assert found == COMPARED
    assert not any(
        needs_torch(ROOT / "tests" / name) for name in ("conftest.py", "e2e/conftest.py")
    )


@cache
def needs_torch(path: Path) -> bool:
    """Return whether importing a module of the tests imports torch; helpers do not form cycles."""
    for name in imported(ast.parse(path.read_text()).body):
        if name.split(".")[0] in NEED_TORCH or name.startswith(FOR_TORCH):
            return True
        file = ROOT / Path(*name.split(".")).with_suffix(".py")
        if name.startswith("tests.") and file.is_file() and needs_torch(file):
            return True
    return False


def imported(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the modules, and names in modules, that these statements import at once."""
    for statement in body:
        match statement:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{name.name}" for name in names)
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=other):
                yield from imported(other)
            case ast.If(body=first, orelse=other):
                yield from imported(first + other)
