"""Row 67: what the system refuses a command is one line, or no matter."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quire.cli.main import main
from quire.engine.process import _failed
from tests.e2e.serving import QUIRE

SMALL = 256 * 1024


def stack(soft: int, hard: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))


def completed(model: Path, limits: Callable[[], None], *flags: str) -> subprocess.CompletedProcess:  # type: ignore[type-arg]
    command = [*QUIRE, "complete", "hi", "--model", str(model), "--max-tokens", "2", *flags]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, preexec_fn=limits
    )


def test_row_67_a_small_stack_is_enlarged(tiny_model: Path) -> None:
    done = completed(tiny_model, stack(SMALL, resource.RLIM_INFINITY), "--num-threads", "2")
    assert done.returncode == 0, done.stderr


def test_row_67_a_stack_that_cannot_be_enlarged(tiny_model: Path) -> None:
    done = completed(tiny_model, stack(SMALL, SMALL))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: The system limits stacks to 256 KiB")
    assert done.stderr.endswith("2048. Raise the limit (ulimit -s 8192). [config_error]\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(24, "Too many open files", "x.py"), "Too many open files: x.py. Close files"),
        (OSError(28, "No space left on device"), "No space left on device. Free some space"),
        (OSError(2, "No usable temporary directory found in ['/tmp']"), "Set TMPDIR to a folder"),
        (PermissionError(13, "Permission denied", "/x"), "Permission denied: /x. Name another"),
        (MemoryError(), "The system refuses memory. Free some memory"),
        (RuntimeError("can't start new thread"), "The system refuses a thread. Raise the limit"),
    ],
)
def test_row_67_what_the_system_refuses_is_one_line(
    error: Exception, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(words: list[str]) -> int:
        raise error

    monkeypatch.setattr("quire.cli.main._run", refuse)
    assert main(["doctor"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert said in line
    assert line.endswith("[system_error]")


def test_row_67_a_core_that_is_refused_a_thread_says_so() -> None:
    failed = _failed(RuntimeError("starting a kernel thread: Resource temporarily unavailable"))
    assert failed.code == "engine_dead"
    assert failed.message.endswith("Raise the limit on processes and threads (ulimit -u).")


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_row_67_closed_streams(closed: tuple[int, ...], tiny_model: Path) -> None:
    def close() -> None:
        for number in closed:
            os.close(number)

    done = completed(tiny_model, close)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_row_67_a_log_on_a_full_disk(tiny_model: Path) -> None:
    def fill() -> None:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)

    done = completed(tiny_model, fill)
    assert done.returncode == 0
    assert done.stdout


def test_row_67_a_text_that_the_terminal_cannot_show() -> None:
    show = (
        "import sys; sys.argv[1:] = ['version']; import quire; quire.__version__ = '1→é';"
        "from quire.__main__ import main; main()"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", show], capture_output=True, timeout=300, check=True, env=environment
    )
    assert done.stdout == b"quire 1\\u2192\\xe9\n"


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(words: list[str]) -> int:
        raise FileNotFoundError(2, "No such file or directory", "x")

    monkeypatch.setattr("quire.cli.main._run", fail)
    with pytest.raises(FileNotFoundError):
        main(["doctor"])
