"""Row 56 and the security rules that can be read off the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quire.core.errors import ConfigError
from quire.server.http.listener import check_exposure
from quire.text import template

SOURCES = Path(__file__).parents[2] / "src" / "quire"
WALL_CLOCK = {
    "frontend/output/tracing.py",  # spans carry dates
    "server/app.py",  # `created` of the model
    "metrics/prometheus.py",  # lora_requests_info's value is a date, as vLLM's
    "server/openai/generation.py",  # `created` of an answer
    "server/openai/pooling.py",  # the same
    "server/responses/answer.py",  # the same
    "server/http/exchange.py",  # the Date header
    "server/monitoring/snapshot.py",  # the dashboard shows the time of day
    "kv/lower_tiers.py",  # the times of files are dates
    "runner/kv_files.py",  # the same
}
"""Files that tell the time of day; none measures with it."""
IMPORTS_BY_NAME = {
    "__init__.py",  # the package's own names
    "cli/main.py",  # its commands
    "core/registry.py",  # modules that the registries name
    "profile/nvml.py",  # a library that may not be there
}
"""Files that import what a table of theirs names; nobody imports what a file or a client names."""


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


def test_no_code_is_imported_that_a_model_or_a_client_names(
    sources: list[tuple[str, ast.AST]],
) -> None:
    forbidden = {"__import__", "importlib.import_module", "runpy.run_path", "runpy.run_module"}
    forbidden |= {"importlib.util.spec_from_file_location", "import_module"}
    assert {name for name, tree in sources if not forbidden.isdisjoint(calls(tree))} <= (
        IMPORTS_BY_NAME
    )
    heeds = {name for name, _ in sources if "trust_remote_code" in (SOURCES / name).read_text()}
    assert heeds == {"resolve/vllm_flags.py"}  # which says that it is never done


def test_templates_run_in_one_place_in_the_immutable_sandbox(
    sources: list[tuple[str, ast.AST]],
) -> None:
    made = {
        (name, call)
        for name, tree in sources
        for call in calls(tree)
        if call.split(".")[-1] in {"Environment", "SandboxedEnvironment", "Template", "from_string"}
    }
    assert made == {("text/template.py", "_environment().from_string")}
    assert isinstance(template._environment(), ImmutableSandboxedEnvironment)


def test_keys_are_compared_in_constant_time(sources: list[tuple[str, ast.AST]]) -> None:
    [tree] = [tree for name, tree in sources if name == "server/http/middleware.py"]
    assert "hmac.compare_digest" in set(calls(tree))


def test_a_server_listens_to_this_machine_alone_unless_told() -> None:
    with pytest.raises(ConfigError, match="--allow-no-key"):
        check_exposure("0.0.0.0", is_allowed=False)
