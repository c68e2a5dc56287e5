"""The answer to a Messages request: whole, or as events of its blocks."""

from __future__ import annotations

import hashlib
from dataclasses import field
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.server.anthropic.errors import anthropic_error
from quire.server.anthropic.protocol import AppliedEdits, Message, MessageUsage, OutputTokensDetails
from quire.server.errors import describe
from quire.server.http.event_stream import Framing
from quire.server.http.json_text import encode, named_event, read_arguments
from quire.server.opaque import encode_reasoning
from quire.server.openai.chat import ChatAnswer
from quire.server.openai.generation import completions
from quire.server.tools.deltas import CallDelta, Delta, TextDelta
from quire.server.turns import Turns
from quire.system.records import dataclass

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_KINDS = {"content": "text", "reasoning": "thinking"}
"""Kind of text → type of its block, which is also the name of the block's text field."""


def _error_event(error: Exception) -> bytes:
    status, body = describe(error)
    answer = anthropic_error(status, body.error.message, body.error.code)
    return named_event("error", error=answer.error)


FRAMING = Framing(_error_event, b"", named_event("ping"))


@dataclass(frozen=True, slots=True)
class Options:
    """A request's settings for the form of its answer.

    Attributes:
        omits_thinking: return thinking only in the block's signature.
        eager: names of tools whose input is streamed as the model writes it.
        edits: applied edits, if the request has `context_management`.
    """

    omits_thinking: bool = False
    eager: frozenset[str] = frozenset()
    edits: AppliedEdits | UnsetType = UNSET


@dataclass(slots=True)
class _OpenBlock:
    """A block whose events have begun.

    Attributes:
        name: the tool's name.
        written: its thinking or input so far, for the events at its end.
    """

    type: str
    name: str = ""
    written: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Answer(ChatAnswer):
    """A message, whole or as a `StreamedAnswer` of `event_stream`."""

    options: Options
    num_blocks: int = 0
    open_block: _OpenBlock | None = None

    async def complete(self, outputs: list[RequestOutput]) -> Message:
        output = self.final(outputs)
        [completion] = completions(output)
        message = self.message(output)
        for part in self.read(completion, output).parts:
            block = self.block(part)
            if isinstance(part, CallDelta):
                block["input"] = call_input(part.arguments)
            elif part.kind == "reasoning":
                block["thinking"] = "" if self.options.omits_thinking else part.text
                block["signature"] = self.signature(part.text)
            else:
                block["text"] = part.text
            message.content.append(block)
        message.stop_reason, message.stop_sequence = self.stop(completion, output)
        message.usage = self.usage()  # thinking tokens are counted only after reading the text
        return message

    def events(self, prompt: int, output: RequestOutput) -> Turns[bytes]:
        """Return an output's events. A block closes when another begins."""
        yield from ()  # they are short
        self.used.add(prompt, output)
        parts: list[bytes] = []
        if not self.used.readers:
            parts.append(named_event("message_start", message=self.message(output)))
        for completion in completions(output):
            for part in self.read(completion, output).parts:
                parts += self.part_events(part)
            if completion.finish_reason is not None:
                parts += self.end()
                reason, sequence = self.stop(completion, output)
                stop = {"stop_reason": reason, "stop_sequence": sequence}
                more = (
                    {}
                    if self.options.edits is UNSET
                    else {"context_management": self.options.edits}
                )
                parts.append(named_event("message_delta", delta=stop, usage=self.usage(), **more))
        return b"".join(parts)

    def last_events(self) -> bytes:
        return named_event("message_stop")

    def read(self, completion: CompletionOutput, output: RequestOutput) -> Delta:
        return self.reader(completion, output).read(completion)

    def stop(
        self, completion: CompletionOutput, output: RequestOutput
    ) -> tuple[str | None, str | None]:
        """Return the stop reason, and the stop sequence if one ended the answer."""
        if isinstance(completion.stop_reason, str):
            return "stop_sequence", completion.stop_reason
        reason = self.reader(completion, output).finish_reason(completion.finish_reason)
        limit = self.call.params.max_tokens
        if reason == "length" and limit is not None and self.used.completion_tokens < limit:
            return "model_context_window_exceeded", None
        return _STOP_REASONS.get(reason or "", reason), None

    def part_events(self, part: TextDelta | CallDelta) -> list[bytes]:
        """Return the events of a part; it begins a block unless its block is open."""
        if isinstance(part, CallDelta):
            events = [] if part.name is None else self.begin(self.block(part))
            text, change = part.arguments, "input_json"
        else:
            kind = _KINDS[part.kind]
            is_open = self.open_block is not None and self.open_block.type == kind
            events = [] if is_open else self.begin(self.block(part))
            text, change = part.text, kind
        block = self.open_block
        assert block is not None
        if block.type != "text":
            block.written.append(text)
        if self.is_sent_at_end(block):
            return events
        return [*events, self.delta(change, text)]

    def is_sent_at_end(self, block: _OpenBlock) -> bool:
        """Return whether a block is sent only when complete."""
        if block.type == "tool_use":  # clients may fail to parse a part of its JSON
            return block.name not in self.options.eager
        return block.type == "thinking" and self.options.omits_thinking

    def begin(self, block: dict[str, Any]) -> list[bytes]:
        events = self.end()
        self.open_block = _OpenBlock(block["type"], block.get("name", ""))
        self.num_blocks += 1
        index = self.num_blocks - 1
        return [*events, named_event("content_block_start", index=index, content_block=block)]

    def end(self) -> list[bytes]:
        """Close the open block, and return its last events."""
        block, self.open_block = self.open_block, None
        if block is None:
            return []
        events = []
        written = "".join(block.written)
        if block.type == "thinking":
            events.append(self.delta("signature", self.signature(written)))
        elif block.type == "tool_use" and self.is_sent_at_end(block):
            events.append(self.delta("input_json", bytes(call_input(written)).decode()))
        return [*events, named_event("content_block_stop", index=self.num_blocks - 1)]

    def delta(self, kind: str, text: str) -> bytes:
        name = "partial_json" if kind == "input_json" else kind
        change = {"type": f"{kind}_delta", name: text}
        return named_event("content_block_delta", index=self.num_blocks - 1, delta=change)

    def signature(self, thinking: str) -> str:
        """Return the signature that a client sends back with a thinking block.

        It holds the text if the block omits it, else a hash of it. Some clients drop blocks without
        a signature.
        """
        if self.options.omits_thinking:
            return encode_reasoning(thinking)
        return hashlib.sha256(thinking.encode(errors="replace")).hexdigest()[:32]

    def block(self, part: TextDelta | CallDelta) -> dict[str, Any]:
        """Return the empty block that a part begins."""
        if isinstance(part, CallDelta):
            call_id = self.reading.new_call_id(part)
            return {"type": "tool_use", "id": call_id, "name": part.name, "input": {}}
        if part.kind == "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "text", "text": ""}

    def message(self, output: RequestOutput) -> Message:
        return Message(
            self.call.id,
            self.call.model,
            [],
            self.usage(),
            context_management=self.options.edits,
            warnings=self.call.warnings(output),
        )

    def usage(self) -> MessageUsage:
        usage = self.used.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        thinking = OutputTokensDetails(usage.completion_tokens_details.reasoning_tokens)
        return MessageUsage(
            usage.prompt_tokens - cached,
            usage.completion_tokens,
            cached,
            output_tokens_details=thinking,
        )


def call_input(written: str) -> msgspec.Raw:
    """Return a call's arguments as an object; see `read_arguments`."""
    try:
        return msgspec.Raw(encode(read_arguments(written)))
    except RecursionError:
        return msgspec.Raw(encode({"arguments": written}))
