"""What a piece of generated text added: content, reasoning, tool calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from quire.core.outputs import PositionLogprobs


@dataclass(slots=True)
class CallDelta:
    """What a piece of text added to a tool call.

    Attributes:
        name: the first time only.
        id: with the name, where the model has given one.
    """

    index: int
    name: str | None = None
    arguments: str = ""
    id: str | None = None


Span = tuple[int, int]
"""Of the text that was read: from a character to one behind its last."""


@dataclass(slots=True)
class TextDelta:
    """More of the content, or of the reasoning.

    Attributes:
        spans: where it was read, in order.
        logprobs: those of its tokens, where they are asked for.
    """

    kind: Literal["content", "reasoning"]
    text: str
    spans: list[Span] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)


@dataclass(slots=True)
class Delta:
    """What a piece of text added, in the order in which it was written.

    No two neighbours are of one text, or of one call.
    """

    parts: list[TextDelta | CallDelta] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.parts)

    def add(self, part: TextDelta | CallDelta) -> None:
        """One part more, or more of the last one."""
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
        return self._text("content")

    @property
    def reasoning(self) -> str:
        return self._text("reasoning")

    @property
    def logprobs(self) -> list[PositionLogprobs]:
        """Of the content's tokens."""
        texts = (part for part in self.parts if isinstance(part, TextDelta))
        return [one for part in texts if part.kind == "content" for one in part.logprobs]

    @property
    def calls(self) -> list[CallDelta]:
        return [part for part in self.parts if isinstance(part, CallDelta)]

    def _text(self, kind: str) -> str:
        texts = (part for part in self.parts if isinstance(part, TextDelta))
        return "".join(part.text for part in texts if part.kind == kind)
