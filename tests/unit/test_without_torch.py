"""Without torch, what is skipped, and what still fails."""

from __future__ import annotations

import pytest

from tests.without_torch import ROOT, SkipMissing


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
