"""Build the items of an answer piece by piece, with an event for each piece."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from quire.core.outputs import PositionLogprobs
from quire.server.http.json_text import named_event
from quire.server.opaque import encode_reasoning
from quire.server.openai.answers import TokenLogprob
from quire.server.responses.item_types import ItemStatus, ReasoningText, new_id
from quire.server.responses.protocol import (
    OutputCall,
    OutputCustomCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
)
from quire.server.tools.deltas import CallDelta, Delta, TextDelta
from quire.server.turns import Turns


class ItemWriter:
    """Writes items one after another; a piece of another kind begins a new item.

    Args:
        called: returns the client's name and namespace of the tool that the model calls.
        encode: add reasoning as opaque text, too.

    Attributes:
        items: items so far; the last one is open until `end`.
    """

    def __init__(
        self,
        new_call_id: Callable[[CallDelta], str],
        called: Callable[[str], tuple[str, str | None]],
        *,
        encode: bool,
    ) -> None:
        self.items: list[OutputItem] = []
        self._new_call_id = new_call_id
        self._called = called
        self._encode = encode
        self._numbers = itertools.count()
        self._open: OutputItem | None = None
        self._pieces: list[str] = []
        """Pieces of the open item's text or arguments."""

    def event(self, kind: str, **fields: Any) -> bytes:
        """Return the next server-sent event."""
        return named_event(kind, sequence_number=next(self._numbers), **fields)

    def write(
        self, found: Delta, logprobs: Callable[[list[PositionLogprobs]], Turns[list[TokenLogprob]]]
    ) -> Turns[list[bytes]]:
        """Add a piece of the answer, and return its events.

        Args:
            logprobs: converts log-probabilities to the API's form.
        """
        events: list[bytes] = []
        for part in found.parts:
            entries = (yield from logprobs(part.logprobs)) if isinstance(part, TextDelta) else []
            events += self._write(part, entries)
        return events

    def _write(self, part: TextDelta | CallDelta, logprobs: list[TokenLogprob]) -> Iterator[bytes]:
        if isinstance(part, CallDelta):
            if part.name is not None:
                yield from self._begin_call(part.name, part)
            if part.arguments:
                what = "custom_tool_call_input" if part.custom else "function_call_arguments"
                yield self._delta(f"response.{what}.delta", part.arguments, **self._named)
        elif part.kind == "reasoning":
            if not isinstance(self._open, OutputReasoning):
                yield from self._begin(OutputReasoning(new_id("rs")), ReasoningText(""))
            yield self._delta("response.reasoning_text.delta", part.text, **self._part)
        else:
            if not isinstance(self._open, OutputMessage):
                yield from self._begin(OutputMessage(new_id("msg")), OutputText(""))
            assert isinstance(self._open, OutputMessage)
            self._open.content[0].logprobs += logprobs
            fields = {**self._part, "logprobs": logprobs}
            yield self._delta("response.output_text.delta", part.text, **fields)

    def flush(self) -> None:
        """Write the pieces so far into the open item."""
        text = "".join(self._pieces)
        self._pieces = [text]
        if isinstance(self._open, OutputCall):
            self._open.arguments = text
        elif isinstance(self._open, OutputCustomCall):
            self._open.input = text
        elif self._open is not None:
            self._open.content[0].text = text

    def end(self, status: ItemStatus) -> list[bytes]:
        """Close the open item, and return its events; an empty answer gets an empty message."""
        events: list[bytes] = []
        if not self.items:
            events += self._begin(OutputMessage(new_id("msg")), OutputText(""))
        return events + self._close(status)

    def _begin_call(self, name: str, call: CallDelta) -> list[bytes]:
        name, namespace = self._called(name)
        kind, prefix = (OutputCustomCall, "ctc") if call.custom else (OutputCall, "fc")
        item = kind(new_id(prefix), self._new_call_id(call), name)
        if namespace is not None:
            item.namespace = namespace
        return self._begin(item)

    def _begin(
        self, item: OutputItem, part: OutputText | ReasoningText | None = None
    ) -> list[bytes]:
        events = self._close("completed")
        self._open = item
        self.items.append(item)
        events.append(self.event("response.output_item.added", **self._place, item=item))
        if part is not None:
            item.content.append(part)  # type: ignore[union-attr, arg-type]
            events.append(self.event("response.content_part.added", **self._part, part=part))
        return events

    def _delta(self, kind: str, delta: str, **fields: Any) -> bytes:
        self._pieces.append(delta)
        return self.event(kind, **fields, delta=delta)

    def _close(self, status: ItemStatus) -> list[bytes]:
        item = self._open
        if item is None:
            return []
        self.flush()
        events = self._done(item)
        item.status = status
        events.append(self.event("response.output_item.done", **self._place, item=item))
        self._open, self._pieces = None, []
        return events

    def _done(self, item: OutputItem) -> list[bytes]:
        """Return the events that repeat an item's whole text."""
        if isinstance(item, OutputCall):
            fields = {**self._named, "name": item.name, "arguments": item.arguments}
            return [self.event("response.function_call_arguments.done", **fields)]
        if isinstance(item, OutputCustomCall):
            fields = {**self._named, "input": item.input}
            return [self.event("response.custom_tool_call_input.done", **fields)]
        [part] = item.content
        fields = {**self._part, "text": part.text}
        if isinstance(part, OutputText):
            done = self.event("response.output_text.done", **fields, logprobs=part.logprobs)
        else:
            done = self.event("response.reasoning_text.done", **fields)
        if self._encode and isinstance(item, OutputReasoning):
            item.encrypted_content = encode_reasoning(part.text)
        return [done, self.event("response.content_part.done", **self._part, part=part)]

    @property
    def _place(self) -> dict[str, Any]:
        return {"output_index": len(self.items) - 1}

    @property
    def _named(self) -> dict[str, Any]:
        return {"item_id": self.items[-1].id, **self._place}

    @property
    def _part(self) -> dict[str, Any]:
        return {**self._named, "content_index": 0}
