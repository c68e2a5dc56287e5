"""Messages from the terminal or from a pipe."""

from __future__ import annotations

import sys

QUOTES = '"""'


class Reader:
    """Reads a message per line, or several lines between triple quotes.

    Attributes:
        interactive: whether a person types; lines can then be edited and called back.
    """

    def __init__(self, interactive: bool) -> None:
        self.interactive = interactive
        if interactive:
            import readline  # noqa: F401 -- gives input() its line editing and history

    def read(self) -> str | None:
        """Return the next message that is not empty, None at the end of the input."""
        while True:
            try:
                return self._message()
            except KeyboardInterrupt:
                if not self.interactive:
                    raise
                print("\n/exit or Ctrl-D leaves.", file=sys.stderr)

    def _message(self) -> str | None:
        while (line := self._line("> ")) is not None:
            text = line.strip()
            if text.startswith(QUOTES):
                text = self._block(text.removeprefix(QUOTES))
            if text:
                return text
        return None

    def _block(self, text: str) -> str:
        """Return the text up to the closing quotes or the end of the input."""
        while not text.endswith(QUOTES):
            line = self._line(". ")
            if line is None:
                break
            text += "\n" + line
        return text.removesuffix(QUOTES).strip("\n")

    def _line(self, prompt: str) -> str | None:
        """Return the next line without its end; None at the end of the input."""
        if not self.interactive:
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else None
        try:
            return input(prompt)
        except EOFError:
            print(file=sys.stderr)
            return None
