"""Where a format's generator writes what it has read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from quire.server.json_text import well_formed
from quire.server.tools.deltas import CallDelta, Delta, TextDelta
from quire.server.tools.stream import Input


class _Trimmed:
    """Text whose white space at the end is held back until more comes."""

    def __init__(self, kind: Literal["content", "reasoning"]) -> None:
        self._kind: Literal["content", "reasoning"] = kind
        self._begun = False
        self._space: list[tuple[str, int]] = []

    def push(self, text: str, begin: int, *, strip: bool) -> TextDelta | None:
        """What may be shown of a text that was read from `begin` on, and of what was held back;
        `strip` drops white space at the very beginning."""
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
        """Forget the white space held back, which is returned, and begin anew."""
        held, self._space, self._begun = self._space, [], False
        return self._delta(held)

    def _delta(self, pieces: list[tuple[str, int]]) -> TextDelta:
        text = "".join(piece for piece, _ in pieces)
        return TextDelta(self._kind, text, [(at, at + len(piece)) for piece, at in pieces if piece])


ValueTypes = Mapping[str, Mapping[str, frozenset[str]]]
"""Function → parameter → the JSON types that it may have, where the request says so."""


class Output:
    """What has been read. White space around calls or reasoning is no content.

    Text is told of when the last of it has just been read from `source`.
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
        """Begin a tool call."""
        self._content.drop()
        self._reasoning.drop()
        self._new.add(CallDelta(self.num_calls, well_formed(name), id=call_id))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """More of the arguments of the call begun last."""
        if text:
            self._new.add(CallDelta(self.num_calls - 1, arguments=well_formed(text)))

    def end(self) -> None:
        """No more comes."""
        held = self._content.drop()
        if not self.num_calls and not self._reasoned:
            self._new.add(held)

    def take(self) -> Delta:
        """What is new."""
        new, self._new = self._new, Delta()
        return new
