"""Which structures were found to be good, and which have ended a process."""

from __future__ import annotations

from collections import OrderedDict

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.text.grammar import CHECKED_KEPT, grammar_key, refused, structure_key

DEADLY_KEPT = 1024
"""Structures that ended a process; who asks for one again is refused at once."""


class KnownStructures:
    """Of each kind the latest."""

    def __init__(self) -> None:
        self._good: OrderedDict[bytes, None] = OrderedDict()
        self._deadly: OrderedDict[bytes, str] = OrderedDict()

    def good(self, wanted: StructuredOutputsParams) -> bool:
        """Whether this one was found to be."""
        key = grammar_key(wanted)
        if key not in self._good:
            return False
        self._good.move_to_end(key)
        return True

    def refusal(self, wanted: StructuredOutputsParams) -> InvalidRequestError | None:
        """Why a structure is not to be tried again; None where it may be."""
        if not self._deadly:
            return None
        reason = self._deadly.get(structure_key(wanted))
        return None if reason is None else refused(reason, wanted)

    def learn_good(self, wanted: StructuredOutputsParams) -> None:
        self._good[grammar_key(wanted)] = None
        if len(self._good) > CHECKED_KEPT:
            self._good.popitem(last=False)

    def learn_deadly(self, key: bytes, reason: str) -> None:
        """`key`: of `text.grammar.structure_key`."""
        self._deadly[key] = reason
        self._deadly.move_to_end(key)
        if len(self._deadly) > DEADLY_KEPT:
            self._deadly.popitem(last=False)
