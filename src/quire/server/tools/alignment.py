"""Which tokens a part of the text was made of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from quire.core.outputs import CompletionOutput, PositionLogprobs
from quire.server.tools.deltas import Span


class TokenSpans:
    """The tokens of a text that was not shown yet, in order, each with its place in the text."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, PositionLogprobs]] = deque()
        self._end = 0

    def add(self, completion: CompletionOutput) -> None:
        """The tokens of an output, the whole or a DELTA; none without log-probabilities.

        A token that completes no character is a part of the next one.
        """
        given = zip(completion.logprobs or (), completion.text_ends or (), strict=True)
        for logprobs, end in given:
            self._waiting.append((self._end, max(end, self._end + 1), logprobs))
            self._end = end

    def take(self, spans: Sequence[Span]) -> list[PositionLogprobs]:
        """The tokens that have a character in any of the next parts to be shown, each once; those
        before them never will be."""
        return [found for span in spans for found in self._take(span)]

    def _take(self, span: Span) -> Iterator[PositionLogprobs]:
        first, last = span
        while self._waiting and self._waiting[0][0] < last:
            _, end, logprobs = self._waiting.popleft()
            if end > first:
                yield logprobs
