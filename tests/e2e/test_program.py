"""Ctrl-C and closed pipes: the program ends by the signal, and without a word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.serving import QUIRE

_PRESSED = """
import os, signal, sys

class Press:
    "Ctrl-C in the terminal, as the import of a module begins."
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.killpg(0, signal.SIGINT)

sys.meta_path.insert(0, Press())
from quire.__main__ import main
main()
"""


def ended(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # a group of its own, for the test must outlive Ctrl-C
        command, capture_output=True, text=True, timeout=120, check=False,
        start_new_session=True, stdin=subprocess.DEVNULL, **options,  # type: ignore[call-overload]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("quire.cli.main", ["complete", "hi"]),
        ("quire.frontend.async_llm", ["complete", "hi"]),
        ("starlette", ["serve", "--port", "0"]),
        ("quire.ops.cpu", ["bench", "latency"]),
    ],
)
def test_ctrl_c_while_a_module_is_imported(module: str, words: list[str], tmp_path: Path) -> None:
    program = _PRESSED.format(module=module)
    result = ended([sys.executable, "-c", program, *words], cwd=tmp_path)
    assert result.returncode == -signal.SIGINT, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        ("KeyboardInterrupt", -signal.SIGINT),
        ("BrokenPipeError", -signal.SIGPIPE),
        ("SystemExit(3)", 3),
    ],
)
def test_what_ends_a_command_ends_the_program(raised: str, status: int) -> None:
    program = (
        "import sys; sys.argv = ['quire', 'plan']\n"
        "import quire.cli.plan\n"
        "from quire.__main__ import main\n"
        f"def run(_): raise {raised}\n"
        "quire.cli.plan.run = run\n"
        "main()"
    )
    result = ended([sys.executable, "-c", program])
    assert (result.returncode, result.stderr) == (status, "")


def test_an_interrupt_that_a_library_wraps_or_a_destructor_meets() -> None:
    program = (
        "import signal, sys; sys.argv = ['quire', 'plan']\n"
        "import quire.cli.plan\n"
        "from quire.__main__ import main\n"
        "class Late:\n"
        "    def __del__(self): raise KeyboardInterrupt\n"
        "def run(_):\n"
        "    try: Late()\n"
        "    except KeyboardInterrupt as error: raise ImportError('wrapped') from error\n"
        "    print('went on')\n"
        "quire.cli.plan.run = run\n"
        "main()"
    )
    result = ended([sys.executable, "-c", program])
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, "", "")


def test_a_background_job_goes_on_ignoring_ctrl_c() -> None:
    program = (
        "import os, signal, sys; sys.argv = ['quire', 'version']\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from quire.__main__ import main\n"
        "import quire.cli.main as command\n"
        "run = command.main\n"
        "command.main = lambda: (os.kill(os.getpid(), signal.SIGINT), run())[1]\n"
        "main()"
    )
    result = ended([sys.executable, "-c", program])
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("quire ")


@pytest.mark.parametrize(
    "words",
    [["--help"], ["plan"]],
)
def test_nobody_reads_the_output(words: list[str]) -> None:
    """As in `quire … | head -0`."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [*QUIRE, *words], stdout=writer, stderr=subprocess.PIPE, text=True,
            timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (-signal.SIGPIPE, "")
