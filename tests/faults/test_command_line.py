"""Row 55: a port in use and bad flags are one line and exit status 2."""

from __future__ import annotations

import io
import socket
import subprocess
from pathlib import Path

import pytest

from quire.cli.main import main
from tests.e2e.serving import QUIRE


def the_line(status: int | str | None, out: str, err: str) -> str:
    """The one line that the command ends with."""
    assert status == 2, err
    [line] = err.splitlines()
    assert line.startswith("error: ")
    assert out == ""
    return line


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that the command ends with, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO(""))
        try:
            status: int | str | None = main(words)
        except SystemExit as end:  # argparse's
            status = end.code
    return the_line(status, *capsys.readouterr())


def test_row_55_port_in_use(tiny_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [*QUIRE, "serve", str(tiny_model), "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    line = the_line(done.returncode, done.stdout, done.stderr)
    assert f"Port {port}" in line
    assert "--port" in line


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["serve", "--max-modle-len", "9"], "did you mean --max-model-len"),
        (["complete", "hi", "--temprature=1"], "did you mean --temperature"),
        (["bench", "latency", "--batchsize", "1"], "did you mean --batch-size"),
        (["serve", "--zzz"], "quire serve --help"),
        (["serve", "--port", "x"], "--port"),
        (["serve", "--port", "70000"], "70000"),
        (["serve", "--block-size", "7"], "block_size"),
        (["serve", "a", "b"], "'b'"),
        (["serve", "--max-body-bytes", "1.5.2"], "not a size"),
        (["serv"], "did you mean serve"),
        (["chat", "--dtype", "int9"], "--dtype"),
        (["complete", ""], "empty"),
        (["serve", "--host", "0.0.0.0"], "--allow-no-key"),
        (["serve", "--api-key", ""], "--api-key"),
        (["serve", "--chat-template", "missing.jinja"], "missing.jinja"),
        (["complete", "hi", "--max-tokens", "0"], "max_tokens is 0"),
        (["chat", "--top-p", "7"], "top_p is 7.0"),
        (["explain", "--url", "localhost:8000"], "http://127.0.0.1:8000"),
        (["serve", "--tool-call-parser", "hermse"], "did you mean hermes"),
        (["serve", "--reasoning-parser", "deepseek"], "deepseek_r1"),
        (["serve", "--ssl-certfile", "missing.pem"], "missing.pem"),
    ],
)
def test_row_55_bad_flags(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hint in refused(capsys, *words)
