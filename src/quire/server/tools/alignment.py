"""Map parts of the text to their tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from quire.server.tools.deltas import Span

T = TypeVar("T")


class TokenSpans(Generic[T]):
    """The tokens of the text not yet shown, in order, each with its span of characters."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, T]] = deque()
        self._end = 0

    def add(self, tokens: Sequence[T], text_ends: Sequence[int]) -> None:
        """Add the tokens of an output, whole or DELTA.

        A token that completes no character shares the character of the next one.
        """
        for token, end in zip(tokens, text_ends, strict=True):
            self._waiting.append((self._end, max(end, self._end + 1), token))
            self._end = end

    def take(self, spans: Sequence[Span]) -> list[T]:
        """Return the tokens with a character in `spans`, each once.

        Spans are in order. Tokens before them are dropped.
        """
        return [found for span in spans for found in self._take(span)]

    def _take(self, span: Span) -> Iterator[T]:
        first, last = span
        while self._waiting and self._waiting[0][0] < last:
            _, end, token = self._waiting.popleft()
            if end > first:
                yield token
