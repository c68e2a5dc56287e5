"""What needs an extra is refused early, in one line that names the extra."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from quire.cli.main import main
from quire.core import extras
from quire.core.errors import ConfigError
from quire.core.extras import require

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
COMMANDS = {
    "--ops reference": "plan --ops reference",
    "--device cuda": "plan --device cuda",
    "--trace": "profile --trace traces",
    "--torch": "bench kernels --torch",
    "--profiler-config.profiler=torch": "complete --max-tokens 1 a "
    "--profiler-config.profiler=torch --profiler-config.torch_profiler_dir=traces",
}
PROGRAM = """
import json, sys
sys.modules["torch"] = None
from quire.cli.main import main
for command in json.loads(sys.argv[1]):
    assert main(command.split()) == 2, command
"""


def test_commands_without_torch_name_its_extra(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PROGRAM, json.dumps(list(COMMANDS.values()))]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        f"error: {user} needs torch, which is not installed. "
        "Install it: pip install 'quire[torch]'. [config_error]"
        for user in COMMANDS
    ]
    assert not list(tmp_path.iterdir())


COMMANDS_WITH_FILES = (
    "explain {model} --json {out}",
    "explain {model} --save-profile {out}",
    "simulate {model} --hardware h100 --json {out}",
    "profile {model} --csv {out}",
    "profile {model} --json {out}",
    "bench latency --model {model} --json {out}",
    "tune {model} --slo ttft=1 --output {out}.yaml",
)
COMMANDS_WITH_PICTURES = (
    "explain {model} --plot {out}",
    "simulate {model} --hardware h100 --plot {out}",
)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        *((command, "place") for command in COMMANDS_WITH_FILES + COMMANDS_WITH_PICTURES),
        *((command, "package") for command in COMMANDS_WITH_PICTURES),
    ],
)
def test_results_that_cannot_be_written_are_refused_first(
    command: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before the model is even looked for: it does not exist."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr(extras, "installed", lambda module: reason == "place")
    out = "file/out" if reason == "place" else "new/out"
    assert main(command.format(model=tmp_path / "absent", out=out).split()) == 2
    wanted = "folder cannot be created" if reason == "place" else "needs matplotlib"
    assert wanted in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_where_results_can_be_written(tmp_path: Path) -> None:
    extras.check_output(None, "--json")
    extras.check_output(tmp_path / "new" / "out", "--json")
    assert not list((tmp_path / "new").iterdir())
    with pytest.raises(ConfigError, match=r"--json .* cannot be written: it is a folder"):
        extras.check_output(tmp_path, "--json")


def test_each_extra_exists() -> None:
    offered = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert set(extras._EXTRAS.values()) <= offered.keys()


@pytest.mark.parametrize("module", ["xxhash", "opentelemetry.exporter.otlp.proto.http"])
def test_a_missing_module(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require("numpy", "anything")
    for missing in (module, module.partition(".")[0]):
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(ConfigError, match=r"--flag needs \w+, which.*quire\[") as caught:
            require(module, "--flag", "flag")
        assert caught.value.param == "flag"
