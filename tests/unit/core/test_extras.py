"""What needs an extra is refused early, in one line that names the extra."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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
