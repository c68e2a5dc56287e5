"""Limits a reasoning's tokens by forcing the tokens that end it."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from quire.core.structured_outputs import ThinkingMarks
from quire.sampling.masks import TokenRow

if TYPE_CHECKING:
    from quire.text.tokenizers.tokenizer import Tokenizer

MAX_GRACE = 3
"""Most bytes of an incomplete character, and most tokens beyond the limit to complete it."""
CONTINUATION = bytes(range(0x80, 0xC0))
"""The bytes of a UTF-8 character behind its first one."""


class _Phase(Enum):
    BEFORE = auto()
    INSIDE = auto()
    FORCING = auto()
    DONE = auto()


class ThinkingLimit:
    """Follows one sequence's reasoning by its text.

    Its state depends on the output only, as with `grammars.SequenceMatcher`. Tokens of the marks do
    not count, and no character is cut.

    Args:
        budget: most tokens of reasoning.
    """

    def __init__(self, budget: int, marks: ThinkingMarks, tokenizer: Tokenizer) -> None:
        self._budget = budget
        self._begun = marks.begun
        self._begins = [mark.encode() for mark in marks.begins]
        self._ends = [mark.encode() for mark in marks.ends]
        self._kept = max(MAX_GRACE, *map(len, self._ends))
        forced = marks.forced or marks.ends[0]
        self._forced = tokenizer.encode(forced, add_special_tokens=False)
        self._tokenizer = tokenizer
        self._restart()

    def _restart(self) -> None:
        self._num_followed = self._num_inside = self._num_forced = 0
        self._text = b""
        self._phase = _Phase.BEFORE
        if self._begun:
            self._enter(b"")

    def next_token(self, output: TokenRow) -> int | None:
        """Return the forced token after `output` [n]; None if any token is allowed."""
        if self._num_followed > len(output):  # a failed step's tokens were removed
            self._restart()
        if self._phase is not _Phase.DONE:
            for token in output[self._num_followed :].tolist():
                self._follow(token)
        self._num_followed = len(output)
        return self._forced[self._num_forced] if self._phase is _Phase.FORCING else None

    def _follow(self, token: int) -> None:
        text = self._text + self._tokenizer.token_bytes(token)
        if self._phase is _Phase.FORCING:
            self._num_forced += 1
            if self._num_forced == len(self._forced):
                self._phase = _Phase.DONE
        elif self._phase is _Phase.BEFORE:
            self._seek(text.lstrip())
        elif self._phase is _Phase.INSIDE:
            self._num_inside += 1
            self._look(text)

    def _seek(self, text: bytes) -> None:
        """Look for the reasoning's beginning in the answer so far."""
        mark = next((mark for mark in self._begins if text.startswith(mark)), None)
        if mark is not None:
            self._enter(text[len(mark) :])
        elif any(mark.startswith(text) for mark in self._begins):
            self._text = text
        else:
            self._phase = _Phase.DONE

    def _enter(self, text: bytes) -> None:
        self._phase = _Phase.INSIDE
        self._look(text)

    def _look(self, text: bytes) -> None:
        """Look for the reasoning's end, and force it if the limit is reached."""
        beyond = self._num_inside - self._budget
        if any(mark in text for mark in self._ends):
            self._phase = _Phase.DONE
        elif beyond >= 0 and (beyond == MAX_GRACE or not _cuts_character(text)):
            self._phase = _Phase.FORCING
        self._text = text[-self._kept :]


def _cuts_character(text: bytes) -> bool:
    """Return whether the last UTF-8 character of `text` is incomplete."""
    head = text.rstrip(CONTINUATION)
    first = head[-1:]  # says how many follow
    size = (first >= b"\xc0") + (first >= b"\xe0") + (first >= b"\xf0")
    return len(text) - len(head) < size
