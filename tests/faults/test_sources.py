"""Row 56 and the security rules that can be read off the sources."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

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
    "engine/kv_events.py",  # a message says when it was sent, as vLLM's
    "kv/lower_tiers.py",  # the times of files are dates
    "runner/kv_files.py",  # the same
}
"""Files that tell the time of day; none measures with it."""
IMPORTS_BY_NAME = {
    "__init__.py",  # the package's own names
    "bench/main.py",  # its benchmarks
    "cli/main.py",  # its commands
    "core/registry.py",  # modules that the registries name
    "ops/triton/flash.py",  # packages that may not be there
    "profile/nvml.py",  # a library that may not be there
}
"""Files that import what a table of theirs names; nobody imports what a file or a client names."""


class Source(NamedTuple):
    """A file's name, and the modules that it imports and functions that it calls, as written."""

    name: str
    modules: frozenset[str]
    calls: frozenset[str]


def read(path: Path) -> Source:
    modules, calls = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            calls.add(written(node.func))
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
    return Source(path.relative_to(SOURCES).as_posix(), frozenset(modules), frozenset(calls))


def written(node: ast.AST) -> str:
    """Return names, dots and calls without arguments as they are written; "…" for all else."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return f"{written(node.value)}.{node.attr}"
        case ast.Call(args=[], keywords=[]):
            return f"{written(node.func)}()"
    return "…"


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return list(map(read, SOURCES.rglob("*.py")))


def test_row_56_waits_and_measurements_use_the_monotonic_clock(
    sources: list[Source],
) -> None:
    """So that no jump of the clock is noticed."""
    wall = {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now"}
    served = ("core/", "kv/", "scheduler/", "engine/", "server/", "executor/", "runner/")
    found = {
        source.name
        for source in sources
        if source.name.startswith(served) and not wall.isdisjoint(source.calls)
    }
    assert found <= WALL_CLOCK


def test_nothing_is_evaluated_or_unpickled(sources: list[Source]) -> None:
    forbidden = {"eval", "exec", "pickle.load", "pickle.loads", "marshal.loads", "yaml.load"}
    forbidden |= {"os.system", "shelve.open", "torch.load"}
    for source in sources:
        compiles = {"exec"} if source.name == "system/records.py" else set()  # from our own fields
        assert (forbidden - compiles).isdisjoint(source.calls), source.name


def test_the_server_fetches_no_url(sources: list[Source]) -> None:
    for name, modules, _ in sources:
        if name.startswith(("server/", "text/", "scheduler/", "kv/")):
            assert {"httpx", "requests", "urllib3"}.isdisjoint(m.split(".")[0] for m in modules), (
                name
            )
            assert "urllib.request" not in modules, name


def test_no_code_is_imported_that_a_model_or_a_client_names(
    sources: list[Source],
) -> None:
    forbidden = {"__import__", "importlib.import_module", "runpy.run_path", "runpy.run_module"}
    forbidden |= {"importlib.util.spec_from_file_location", "import_module"}
    assert {s.name for s in sources if not forbidden.isdisjoint(s.calls)} <= IMPORTS_BY_NAME
    heeds = {name for name, *_ in sources if "trust_remote_code" in (SOURCES / name).read_text()}
    assert heeds == {"resolve/vllm_flags.py"}  # which says that it is never done


def test_templates_run_in_one_place_in_the_immutable_sandbox(
    sources: list[Source],
) -> None:
    made = {
        (name, call)
        for name, _, calls in sources
        for call in calls
        if call.split(".")[-1] in {"Environment", "SandboxedEnvironment", "Template", "from_string"}
    }
    assert made == {("text/template.py", "_environment().from_string")}
    assert isinstance(template._environment(), ImmutableSandboxedEnvironment)


def test_keys_are_compared_in_constant_time(sources: list[Source]) -> None:
    [source] = [source for source in sources if source.name == "server/http/middleware.py"]
    assert "hmac.compare_digest" in source.calls


def test_a_server_listens_to_this_machine_alone_unless_told() -> None:
    with pytest.raises(ConfigError, match="--allow-no-key"):
        check_exposure("0.0.0.0", is_allowed=False)
