"""Answers on a terminal: wrapped at words, without control characters."""

from __future__ import annotations

import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self, TextIO

_WIDE = (
    "\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6"
    "\U0001f300-\U0001faff\U00020000-\U0003fffd"
)
"""Letters that fill two columns; a line may end after any of them."""
_PIECE = re.compile(rf"\n|[^\S\n]+|[{_WIDE}]|[^\s{_WIDE}]+")
_WHOLE = re.compile(rf"[\n{_WIDE}]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""A model could move the cursor or rename the window with these."""
_TAB = 4


class Wrapped:
    """Writes text in parts, without breaking words at the terminal's edge.

    A word is written when it is complete. The terminal breaks words longer than a line.
    """

    def __init__(self, out: TextIO, columns: int | None) -> None:
        self._out = out
        self._columns = columns
        self._column = 0
        self._held = ""

    @classmethod
    @contextmanager
    def to_stdout(cls, wrapped: bool) -> Iterator[Self]:
        """Yield a writer to standard output; without wrapping if it is not a terminal."""
        text = cls(sys.stdout, shutil.get_terminal_size().columns if wrapped else None)
        try:
            yield text
        finally:
            text.flush()

    def write(self, text: str) -> None:
        """Write all complete words."""
        if self._columns is None:
            self._out.write(text)
        else:
            pieces = _PIECE.findall(self._held + _CONTROL.sub("\ufffd", text))
            self._held = pieces.pop() if pieces and not _WHOLE.match(pieces[-1]) else ""
            for piece in pieces:
                self._put(piece)
        self._out.flush()

    def flush(self) -> None:
        """Write the rest."""
        self._put(self._held)
        self._held = ""
        self._out.flush()

    def _put(self, piece: str) -> None:
        if piece == "\n":
            self._column = 0
        elif self._columns is not None:
            piece = piece.expandtabs(_TAB)
            width = _width(piece)
            if self._column and self._column + width > self._columns:
                self._out.write("\n")
                piece = piece.lstrip()
                self._column, width = 0, _width(piece)
            self._column += width
            if self._column > self._columns:  # the terminal has broken it
                self._column = self._column % self._columns or self._columns
        self._out.write(piece)


def _width(text: str) -> int:
    return sum(_columns_of(character) for character in text)


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
