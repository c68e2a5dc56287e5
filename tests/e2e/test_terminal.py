"""`quire chat` on a terminal of 40 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.serving import QUIRE

COLUMNS = 40
PATIENCE = 300.0
"""Seconds; a busy machine loads slowly."""


class Terminal:
    """A program on a terminal, and what a person sees of it and types."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self.process = process
        self._screen = screen
        self.seen = ""

    def wait_for(self, text: str) -> str:
        """Read until `text` comes; what came before it."""
        while text not in self.seen:
            ready, _, _ = select.select([self._screen], [], [], PATIENCE)
            assert ready, f"no {text!r} after {self.seen!r}"
            self.seen += os.read(self._screen, 65536).decode()
        before, _, self.seen = self.seen.partition(text)
        return before

    def interrupted(self, text: str) -> None:
        """Press Ctrl-C again until it is heard: readline misses one just before its `select`."""
        for _ in range(12):
            if select.select([self._screen], [], [], 5.0)[0]:
                break
            self.type("\x03")
        self.wait_for(text)

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())


@contextmanager
def terminal(*words: str) -> Iterator[Terminal]:
    screen, line = pty.openpty()
    fcntl.ioctl(line, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))

    def take_over() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches it

    process = subprocess.Popen(
        [*QUIRE, *words], stdin=line, stdout=line, stderr=line,
        preexec_fn=take_over,  # noqa: PLW1509 - no other threads run here
        env={**os.environ, "TERM": "dumb"},
    )  # fmt: skip
    os.close(line)
    try:
        yield Terminal(process, screen)
    finally:
        process.kill()
        process.wait()
        os.close(screen)


def test_a_conversation(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    with terminal("chat", "--max-tokens", "60", "--temperature", "0") as shown:
        before = shown.wait_for("> ")
        assert "INFO" not in before
        assert "Loading the model" in before
        assert "/help lists the commands." in before
        shown.type("Tell me a story.\n")
        shown.wait_for("Tell me a story.")
        answer = shown.wait_for("60 tokens,").strip().splitlines()
        assert len(answer) > 3
        assert all(len(row) <= COLUMNS and not row.startswith(" ") for row in answer)
        shown.wait_for("> ")
        shown.type('"""\n')
        shown.wait_for(". ")
        shown.type("two\n")
        shown.wait_for(". ")
        shown.type('lines"""\n')
        shown.wait_for("ended by")
        shown.wait_for("> ")
        shown.type(f"/save {file}\n")
        shown.wait_for("4 messages in ")
        shown.wait_for("> ")
        shown.type("\x03")
        shown.interrupted("/exit or Ctrl-D leaves.")
        shown.wait_for("> ")
        shown.type("\x04")
        assert shown.process.wait(30) == 0
    assert '"two\\nlines"' in file.read_text()
    assert re.search(r'"role": "assistant",\s*"content": "\w', file.read_text())


def test_ctrl_c_stops_the_answer_and_not_the_chat() -> None:
    flags = ["--ignore-eos", "--max-tokens", "900", "--temperature", "0"]
    with terminal("chat", *flags) as shown:
        shown.wait_for("> ")
        shown.type("Tell me a story.\n")
        shown.wait_for("Tell me a story.")
        shown.wait_for("\n")
        shown.wait_for(" ")  # its first word has come
        shown.type("\x03")
        shown.wait_for("ended by interrupt")
        shown.wait_for("> ")
        shown.type("/exit\n")
        assert shown.process.wait(30) == 0
