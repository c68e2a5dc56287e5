"""Caches of valid structures, and of structures that have ended a process."""

from __future__ import annotations

from collections import OrderedDict

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.frontend.workers.grammar_messages import Checked
from quire.text.structures import CHECKED_KEPT, grammar_key, refused, structure_key

KEPT_BYTES = 64 * 2**20
"""Most bytes of valid structures' grammars."""
DEADLY_KEPT = 1024
"""Most remembered structures that ended a process; they are refused at once."""


class KnownStructures:
    """The latest structures of both kinds."""

    def __init__(self) -> None:
        self._good: OrderedDict[bytes, Checked] = OrderedDict()
        self._good_bytes = 0
        self._deadly: OrderedDict[bytes, str] = OrderedDict()

    def good(self, wanted: StructuredOutputsParams) -> Checked | None:
        """Return the result of checking a structure, if it is known to be valid."""
        key = grammar_key(wanted)
        if (found := self._good.get(key)) is not None:
            self._good.move_to_end(key)
        return found

    def refusal(self, wanted: StructuredOutputsParams) -> InvalidRequestError | None:
        """Return why a structure must not be tried again; None if it may."""
        if not self._deadly:
            return None
        reason = self._deadly.get(structure_key(wanted))
        return None if reason is None else refused(reason, wanted)

    def learn_good(self, wanted: StructuredOutputsParams, checked: Checked) -> None:
        key = grammar_key(wanted)
        if (before := self._good.pop(key, None)) is not None:
            self._good_bytes -= before.num_bytes
        self._good[key] = checked
        self._good_bytes += checked.num_bytes
        while len(self._good) > CHECKED_KEPT or self._good_bytes > KEPT_BYTES:
            _, oldest = self._good.popitem(last=False)
            self._good_bytes -= oldest.num_bytes

    def learn_deadly(self, key: bytes, reason: str) -> None:
        """Remember a structure that ended a process, by its `text.structures.structure_key`."""
        self._deadly[key] = reason
        self._deadly.move_to_end(key)
        if len(self._deadly) > DEADLY_KEPT:
            self._deadly.popitem(last=False)
