"""The import layers hold, and the lint that says so can see."""

from pathlib import Path

import pytest

from tools import size_lint
from tools.layer_lint import check

SOURCE = Path(__file__).resolve().parents[2] / "src" / "quire"


def lint(tmp_path: Path, files: dict[str, str]) -> list[str]:
    """The lint's verdict on a package of these files, as `path:line: message`."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [
        f"{v.path.relative_to(tmp_path).as_posix()}:{v.line}: {v.message}" for v in check(tmp_path)
    ]


@pytest.mark.slow  # `make lint` checks the same at every push
def test_quire_keeps_its_layers() -> None:
    assert [str(v) for v in check(SOURCE)] == []


@pytest.mark.parametrize(
    "statement",
    [
        "import quire.models.decoder",
        "from quire.models import decoder",
        "from quire.models.decoder import Decoder",
        "from quire import models",
        "from ..models import decoder",
        "def f():\n    from quire.models import decoder",
        "import importlib\nimportlib.import_module('quire.models')",
    ],
)
def test_a_room_must_not_import_to_its_right(tmp_path: Path, statement: str) -> None:
    files = {"layers/linear.py": statement, "models/__init__.py": "", "models/decoder.py": ""}
    line = statement.count("\n") + 1
    message = "layers must not import models, which is not to its left"
    assert lint(tmp_path, files) == [f"layers/linear.py:{line}: {message}"]


def test_rooms_of_one_level_do_not_see_each_other(tmp_path: Path) -> None:
    assert len(lint(tmp_path, {"kv/a.py": "import quire.checkpoint"})) == 1
    assert lint(tmp_path, {"kv/a.py": "", "text/a.py": "import quire.checkpoint"}) == []


@pytest.mark.parametrize(
    "text",
    [
        "from quire.core import errors",
        "import quire.kv.manager",
        "from quire import __version__",
        "import quire",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from quire.engine import core",
        "import typing\nif typing.TYPE_CHECKING:\n    import torch",
    ],
)
def test_what_is_allowed(tmp_path: Path, text: str) -> None:
    assert lint(tmp_path, {"scheduler/scheduler.py": text}) == []


def test_an_unknown_room_is_named(tmp_path: Path) -> None:
    assert "'attic' is in no level" in lint(tmp_path, {"attic/box.py": ""})[0]


def test_lazy_exports_are_for_users_only(tmp_path: Path) -> None:
    [found] = lint(tmp_path, {"cli/main.py": "from quire import LLM"})
    assert found == "cli/main.py:1: import 'LLM' from the room that defines it"


def test_vllms_import_paths_see_every_room_and_are_seen_by_none(tmp_path: Path) -> None:
    files = {"inputs.py": "import quire.frontend.llm", "v1/engine/a.py": "import quire.cli.main"}
    assert lint(tmp_path, files) == []
    [found] = lint(tmp_path, {"cli/main.py": "from quire.inputs import TextPrompt"})
    assert found == "cli/main.py:1: inputs is for users; import from the room that defines it"


@pytest.mark.parametrize(
    "room", ["core", "kv", "scheduler", "checkpoint", "text", "explain", "server", "cli"]
)
@pytest.mark.parametrize("text", ["import torch", "def f():\n    import torch.nn as nn"])
def test_torch_free_rooms(tmp_path: Path, room: str, text: str) -> None:
    [found] = lint(tmp_path, {f"{room}/a.py": text})
    assert found.endswith(f"{room}.a must not load torch: torch")


@pytest.mark.parametrize(
    "name", ["ops/cpu.py", "runner/a.py", "frontend/llm.py", "profile/devices.py"]
)
def test_torch_belongs_to_its_provider_and_to_its_own_profiler(tmp_path: Path, name: str) -> None:
    text = "def f():\n    from torch import Tensor"
    assert lint(tmp_path, {"ops/torch_ops/a.py": text, "profile/torch_profiler.py": text}) == []
    [found] = lint(tmp_path, {name: text})
    assert "must not import torch" in found


def test_torch_is_found_behind_other_modules(tmp_path: Path) -> None:
    files = {
        "frontend/client/core_client.py": "from quire.engine.process import start",
        "engine/process.py": "def start():\n    from quire.engine import core",
        "engine/core.py": "def load():\n    from quire.ops.torch_ops import reference",
        "ops/torch_ops/reference.py": "import torch",
        "server/app.py": "from quire.frontend.client import core_client",
    }
    assert lint(tmp_path, files) == []
    files["engine/process.py"] = "from quire.engine import core"
    files["engine/core.py"] = "from quire.ops.torch_ops import reference"
    client = "quire.frontend.client.core_client"
    core = "quire.engine.process -> quire.engine.core"
    chain = "quire.ops.torch_ops.reference -> torch"
    assert lint(tmp_path, files) == [
        f"engine/core.py:1: engine.core must not load torch: {chain}",
        f"engine/process.py:1: engine.process must not load torch: quire.engine.core -> {chain}",
        f"frontend/client/core_client.py:1: {client[6:]} must not load torch: {core} -> {chain}",
        f"server/app.py:1: server.app must not load torch: {client} -> {core} -> {chain}",
    ]


def test_a_command_may_start_an_engine_in_a_function(tmp_path: Path) -> None:
    files = {
        "ops/torch_ops/reference.py": "import torch",
        "models/weights/host_offload.py": "import quire.ops.torch_ops.reference",
        "cli/main.py": "def f():\n    import quire.models.weights.host_offload",
    }
    assert lint(tmp_path, files) == []
    assert len(lint(tmp_path, {"cli/main.py": "import quire.models.weights.host_offload"})) == 1


def test_native_code_belongs_to_ops(tmp_path: Path) -> None:
    text = "from quire import _native\nimport triton"
    assert lint(tmp_path, {"ops/triton/native.py": text}) == []
    assert lint(tmp_path, {"layers/norm.py": text}) == [
        "layers/norm.py:1: only ops, spec, text may import quire._native",
        "layers/norm.py:2: layers.norm must not load torch: triton",
        "layers/norm.py:2: only ops.triton may import triton",
    ]


@pytest.mark.parametrize(
    "text",
    ["import os\nos.environ['A']", "import os as o\no.getenv('A')", "\nfrom os import environ"],
)
def test_only_system_env_touches_the_environment(tmp_path: Path, text: str) -> None:
    assert lint(tmp_path, {"system/env.py": text}) == []
    [found] = lint(tmp_path, {"kv/a.py": text})
    assert found == "kv/a.py:2: only system.env touches the environment"


def test_tools_use_public_modules_only(tmp_path: Path) -> None:
    files = {
        "bench/serving/serve.py": "import quire.frontend.llm\nimport quire.ops",
        "bench/kernels/cases.py": "import quire.ops",
        "simulate/clock.py": "import quire.kv\nimport quire.scheduler\nimport quire.runner",
    }
    found = lint(tmp_path, files)
    assert [f.partition(" imports ")[0] for f in found] == [
        "bench/serving/serve.py:2: bench.serving.serve",
        "simulate/clock.py:3: simulate.clock",
    ]


def test_modules_must_not_import_each_other(tmp_path: Path) -> None:
    files = {
        "kv/a.py": "from quire.kv.b import f",
        "kv/b.py": "def f():\n    from quire.kv.c import g",
        "kv/c.py": "import quire.kv.a",
        "kv/d.py": "from quire.kv import a\n\nif TYPE_CHECKING:\n    from quire.kv import e",
        "kv/e.py": "from quire.kv import d",
    }
    assert lint(tmp_path, files) == [
        "kv/a.py:1: kv.a and kv.b import each other",
        "kv/b.py:2: kv.b and kv.c import each other",
        "kv/c.py:1: kv.c and kv.a import each other",
    ]


def test_sizes(tmp_path: Path) -> None:
    body = "    x = 1\n"
    files = {
        "kv/a.py": "def f():\n" + 59 * body + "def g():\n" + 60 * body,
        "text/a.py": "class A:\n" + 299 * body + "class B:\n" + 300 * body,
        **{f"kv/x/f{i}.py": "" for i in range(26)},
        **{f"text/f{i}.py": "" for i in range(26)},
        **{f"models/architectures/f{i}.py": "" for i in range(26)},
    }
    assert lint(tmp_path, files) == [
        "kv/a.py:61: kv.a.g has 61 lines; at most 60 are allowed",
        "kv/x:1: kv.x has 26 files; at most 25 lie flat",
        "text:1: text has 27 files; at most 25 lie flat",
        "text/a.py:301: text.a.B has 301 lines; at most 300 are allowed",
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (60, ["needs no exception in tools/size_lint.py any more"]),
        (80, []),
        (81, ["has 81 lines; at most 80 are allowed"]),
    ],
)
def test_an_exception_only_shrinks(
    tmp_path: Path, lines: int, message: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(size_lint.EXCEPTIONS, "resolve.engine.resolve", 80)
    text = "def resolve():\n" + (lines - 1) * "    x = 1\n"
    found = lint(tmp_path, {"resolve/engine.py": text})
    assert found == [f"resolve/engine.py:1: resolve.engine.resolve {each}" for each in message]
