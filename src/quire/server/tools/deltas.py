"""The parts that a piece of generated text adds, and their tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Generic, Literal, TypeVar

from quire.core.outputs import PositionLogprobs
from quire.system.records import dataclass


@dataclass(slots=True)
class CallDelta:
    """New text of a tool call.

    Attributes:
        name: only in a call's first delta.
        id: with the name, if the model wrote one.
        custom: the arguments are the input of a custom tool.
    """

    index: int
    name: str | None = None
    arguments: str = ""
    id: str | None = None
    custom: bool = False


Span = tuple[int, int]
"""Characters of the text that was read: first, and one after the last."""


@dataclass(slots=True)
class TextDelta:
    """New text of the content, or of the reasoning.

    Attributes:
        spans: its positions in the text that was read, in order.
        logprobs: of its tokens, if requested.
    """

    kind: Literal["content", "reasoning"]
    text: str
    spans: list[Span] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)


@dataclass(slots=True)
class Delta:
    """The parts that a piece of text adds, in order.

    Adjacent parts never belong to the same text or call.
    """

    parts: list[TextDelta | CallDelta] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.parts)

    def add(self, part: TextDelta | CallDelta) -> None:
        """Append a part, or extend the last one."""
        last = self.parts[-1] if self.parts else None
        if isinstance(part, TextDelta):
            if isinstance(last, TextDelta) and last.kind == part.kind:
                last.text += part.text
                last.spans += part.spans
                last.logprobs += part.logprobs
            elif part.text or part.logprobs:
                self.parts.append(part)
        elif isinstance(last, CallDelta) and part.name is None:
            last.arguments += part.arguments
        else:
            self.parts.append(part)

    @property
    def content(self) -> str:
        return "".join(part.text for part in self._texts("content"))

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self._texts("reasoning"))

    @property
    def logprobs(self) -> list[PositionLogprobs]:
        """Return the log-probabilities of the content's tokens."""
        return [one for part in self._texts("content") for one in part.logprobs]

    @property
    def calls(self) -> list[CallDelta]:
        return [part for part in self.parts if isinstance(part, CallDelta)]

    def _texts(self, kind: str) -> list[TextDelta]:
        return [p for p in self.parts if isinstance(p, TextDelta) and p.kind == kind]


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
