"""The commands as a user types them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from quire.system.hardware import detect
from tests.e2e.serving import QUIRE


def quire(*words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*QUIRE, *words], input=text, capture_output=True, text=True, timeout=120, check=False
    )


def test_help() -> None:
    result = quire("--help")
    assert result.returncode == 0
    assert "serve" in result.stdout


def test_complete_keeps_stdout_clean(tiny_model: Path) -> None:
    """A chat, its prompt as a word, and the same from a pipe: one answer, and nothing else."""
    prompt = "user: hi\nassistant:"
    flags = ["--model", str(tiny_model), "--max-tokens", "8", "--temperature", "0", "--ignore-eos"]
    result = quire("complete", prompt, *flags)
    assert result.returncode == 0, result.stderr
    assert "8 tokens" in result.stderr
    assert "first token after" in result.stderr
    assert result.stdout.strip()
    assert quire("complete", *flags, text=f"{prompt}\n").stdout == result.stdout
    chat = quire("complete", "--chat", "hi", *flags)
    assert chat.returncode == 0, chat.stderr
    assert chat.stdout == result.stdout
    if detect().cores > 1:
        staged = quire("complete", prompt, *flags, "--pipeline-parallel-size", "2")
        assert staged.returncode == 0, staged.stderr
        assert staged.stdout == result.stdout


def test_chat_from_a_pipe(tiny_model: Path) -> None:
    lines = "hi\n/reset\nhi\n\n/nonsense\n/help\n/exit\nnever\n"
    flags = ["--max-tokens", "4", "--temperature", "0", "--stop", "\n", "--ignore-eos"]
    result = quire("chat", "--model", str(tiny_model), *flags, text=lines)
    assert result.returncode == 0, result.stderr
    assert "unknown command /nonsense" in result.stderr
    first, second = result.stdout.split("\n")[:2]
    assert first == second


def test_errors_are_one_line(tiny_model: Path) -> None:
    result = quire("complete", "x" * 600, "--model", str(tiny_model))
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("error: This model's maximum context length is 512 tokens")
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
