"""Which structures were found to be good, and which have ended a process."""

from __future__ import annotations

from collections import OrderedDict

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.frontend.workers.grammar_worker import Checked
from quire.text.grammar import CHECKED_KEPT, grammar_key, structure_key
from quire.text.grammar_writer import refused

KEPT_BYTES = 64 * 2**20
"""Of the grammars of good structures."""
DEADLY_KEPT = 1024
"""Structures that ended a process; who asks for one again is refused at once."""


class KnownStructures:
    """Of each kind the latest."""

    def __init__(self) -> None:
        self._good: OrderedDict[bytes, Checked] = OrderedDict()
        self._good_bytes = 0
        self._deadly: OrderedDict[bytes, str] = OrderedDict()

    def good(self, wanted: StructuredOutputsParams) -> Checked | None:
        """What a process has said of this one, if it was found to be good."""
        key = grammar_key(wanted)
        if (found := self._good.get(key)) is not None:
            self._good.move_to_end(key)
        return found

    def refusal(self, wanted: StructuredOutputsParams) -> InvalidRequestError | None:
        """Why a structure is not to be tried again; None where it may be."""
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
        """`key`: of `text.grammar.structure_key`."""
        self._deadly[key] = reason
        self._deadly.move_to_end(key)
        if len(self._deadly) > DEADLY_KEPT:
            self._deadly.popitem(last=False)
