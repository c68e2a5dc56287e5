"""Whose structure an engine core was at when it was lost."""

from __future__ import annotations

import signal
from pathlib import Path

from quire.system.native_marks import Note, make_file, read_notes

CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
"""Signals that a process ends itself by; others are somebody's wish."""
_RELAYED = 128


def status_like(status: int) -> int:
    """The exit status with which a core tells of a process that computed with it and ended with
    `status`: of a crash 128 and its signal, as a shell does."""
    return _RELAYED - status if -status in CRASHES else 1


class Suspects:
    """Of one core.

    Args:
        path: where to make the file in which it notes what native code is at.

    Attributes:
        keys: the structures that may have ended it (see `text.grammar.structure_key`); none where
            it was ended by somebody else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: frozenset[bytes] = frozenset()
        self._seen: set[Note] = set()
        self._looks: dict[Note, int] = {}
        make_file(path)

    def on_exit(self, status: int) -> None:
        """It has ended: of a crash, its own or another rank's, in one of the calls that had not
        returned?"""
        if -status in CRASHES or status - _RELAYED in CRASHES:
            self.keys = frozenset(note.key for note in read_notes(self.path))

    def hung(self, looks: int) -> bool:
        """To be asked at intervals: whether more than so many have found it in one call, though
        its steps go on, for grammars are compiled beside them."""
        self._looks = {note: 1 + self._looks.get(note, 0) for note in read_notes(self.path)}
        return max(self._looks.values(), default=0) > looks

    def look(self) -> None:
        """It says nothing any more. A call that has not returned some time later is why."""
        self._seen = read_notes(self.path)

    def on_stuck(self) -> None:
        """That time has passed."""
        self.keys = frozenset(note.key for note in self._seen & read_notes(self.path))
