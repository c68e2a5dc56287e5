"""Which tokens a part of the text was made of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from quire.server.tools.deltas import Span

T = TypeVar("T")


class TokenSpans(Generic[T]):
    """The tokens of a text that was not shown yet, in order, each with its place in the text."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, T]] = deque()
        self._end = 0

    def add(self, tokens: Sequence[T], text_ends: Sequence[int]) -> None:
        """Add what is known of the tokens of an output, the whole or a DELTA.

        A token that completes no character is a part of the next one.
        """
        for token, end in zip(tokens, text_ends, strict=True):
            self._waiting.append((self._end, max(end, self._end + 1), token))
            self._end = end

    def take(self, spans: Sequence[Span]) -> list[T]:
        """The tokens that have a character in any of the next parts to be shown, each once; those
        before them never will be."""
        return [found for span in spans for found in self._take(span)]

    def _take(self, span: Span) -> Iterator[T]:
        first, last = span
        while self._waiting and self._waiting[0][0] < last:
            _, end, token = self._waiting.popleft()
            if end > first:
                yield token
