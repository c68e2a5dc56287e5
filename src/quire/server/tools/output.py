"""The output of a format's generator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from quire.server.http.json_text import well_formed
from quire.server.tools.deltas import CallDelta, Delta, TextDelta
from quire.server.tools.stream import Input


class _Trimmed:
    """Text whose trailing white space is held back until more text follows."""

    def __init__(self, kind: Literal["content", "reasoning"]) -> None:
        self._kind: Literal["content", "reasoning"] = kind
        self._begun = False
        self._space: list[tuple[str, int]] = []

    def push(self, text: str, begin: int, *, strip: bool) -> TextDelta | None:
        """Return the text that can be shown: held-back text, and `text` without spaces at its end.

        Args:
            begin: position of `text` in the input.
            strip: drop white space at the very beginning.
        """
        kept = text.rstrip()
        if not kept:
            self._space.append((text, begin))
            return None
        end = begin + len(kept)
        if strip and not self._begun:
            stripped = kept.lstrip()
            shown = [(stripped, end - len(stripped))]
        else:
            shown = [*self._space, (kept, begin)]
        self._space = [(text[len(kept) :], end)]
        self._begun = True
        return self._delta(shown)

    def drop(self) -> TextDelta:
        """Start again, and return the white space that was held back."""
        held, self._space, self._begun = self._space, [], False
        return self._delta(held)

    def _delta(self, pieces: list[tuple[str, int]]) -> TextDelta:
        text = "".join(piece for piece, _ in pieces)
        return TextDelta(self._kind, text, [(at, at + len(piece)) for piece, at in pieces if piece])


ValueTypes = Mapping[str, Mapping[str, frozenset[str]]]
"""Function → parameter → its allowed JSON types, if the request declares them."""


class Output:
    """The parts read so far. White space around calls or reasoning is not content.

    Text must be written right after it was read from `source`.
    """

    def __init__(self, source: Input, types: ValueTypes | None = None) -> None:
        self.types = types or {}
        self.num_calls = 0
        self._source = source
        self._new = Delta()
        self._content = _Trimmed("content")
        self._reasoning = _Trimmed("reasoning")
        self._reasoned = False

    def content(self, text: str) -> None:
        begin = self._source.position - len(text)
        shown = self._content.push(text, begin, strip=self._reasoned or self.num_calls > 0)
        if shown:
            self._reasoning.drop()
            self._new.add(shown)

    def reasoning(self, text: str) -> None:
        self._reasoned = True
        shown = self._reasoning.push(text, self._source.position - len(text), strip=True)
        if shown:
            self._content.drop()
            self._new.add(shown)

    def call(self, name: str, call_id: str | None = None) -> None:
        """Begin a tool call. The text that the source holds is a part of it."""
        self._source.release()
        self._content.drop()
        self._reasoning.drop()
        self._new.add(CallDelta(self.num_calls, well_formed(name), id=call_id))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """Add arguments to the last call."""
        if text:
            self._new.add(CallDelta(self.num_calls - 1, arguments=well_formed(text)))

    def end(self) -> None:
        """Write white space held back, if it is content."""
        held = self._content.drop()
        if not self.num_calls and not self._reasoned:
            self._new.add(held)

    def take(self) -> Delta:
        """Return the parts since the last `take`."""
        new, self._new = self._new, Delta()
        return new
