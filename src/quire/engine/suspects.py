"""Finds the structures that an engine core worked on when it was lost."""

from __future__ import annotations

import signal
from pathlib import Path

from quire.system.native_marks import Note, make_file, read_notes

CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
"""Signals of a process's own faults; other signals come from the system or a user."""
_RELAYED = 128


def status_like(status: int) -> int:
    """Return the exit status with which a core reports the end of another rank's process.

    After a crash it is 128 plus the signal, as in a shell; else 1.
    """
    return _RELAYED - status if -status in CRASHES else 1


class Suspects:
    """The suspected structures of one core.

    Args:
        path: a new file, in which the core notes the structure that native code works on.

    Attributes:
        keys: the structures that may have ended the core (see `text.structures.structure_key`);
            empty if it ended for another reason.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: frozenset[bytes] = frozenset()
        self._seen: set[Note] = set()
        self._looks: dict[Note, int] = {}
        make_file(path)

    def on_exit(self, status: int) -> None:
        """Set `keys` after the core's exit: if a rank crashed, all calls that had not returned."""
        if -status in CRASHES or status - _RELAYED in CRASHES:
            self.keys = frozenset(note.key for note in read_notes(self.path))

    def hung(self, looks: int) -> bool:
        """Return whether more than `looks` calls of this method in a row saw the same native call.

        Call it at intervals. Grammars are compiled in parallel to steps, so a hang there does not
        stop the steps.
        """
        self._looks = {note: 1 + self._looks.get(note, 0) for note in read_notes(self.path)}
        return max(self._looks.values(), default=0) > looks

    def look(self) -> None:
        """Record the present native calls of a core that does not answer."""
        self._seen = read_notes(self.path)

    def on_stuck(self) -> None:
        """Set `keys` some time after `look`: the calls that still have not returned."""
        self.keys = frozenset(note.key for note in self._seen & read_notes(self.path))
