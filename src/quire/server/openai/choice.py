"""Read one choice of an answer to a chat: its content, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import UNSET, UnsetType

from quire.core.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from quire.server.openai.answers import AssistantMessage, CustomCall, Delta, FunctionCall, ToolCall
from quire.server.openai.custom import InputReader
from quire.server.openai.tools import Reading
from quire.server.tools import deltas
from quire.server.tools.deltas import TokenSpans
from quire.text.tokenizers.tokenizer import Tokenizer

Part = deltas.TextDelta | deltas.CallDelta


class ChoiceReader:
    """Splits one choice's text into content, reasoning and tool calls, piece by piece.

    Attributes:
        reasoning_tokens: tokens of the reasoning so far, returned or not.
    """

    def __init__(self, reading: Reading, tokenizer: Tokenizer, output: RequestOutput) -> None:
        self._parser = reading.parser(tokenizer, output)
        self._reading = reading
        self._logprobs: TokenSpans[PositionLogprobs] = TokenSpans()
        self._tokens: TokenSpans[int] = TokenSpans()
        self._input: tuple[int, InputReader] | None = None
        """Index and reader of an open call of a custom tool."""
        self.reasoning_tokens = 0
        self._has_content = False

    def read(self, completion: CompletionOutput) -> deltas.Delta:
        """Return the parts of an output, whole or DELTA; content has its tokens' logprobs."""
        if completion.logprobs is not None:
            self._logprobs.add(completion.logprobs, completion.text_ends)
        if self._reading.parsers.reasoning is not None:
            self._tokens.add(completion.token_ids, completion.text_ends)
        parts = self._parser.push(completion.text).parts
        if completion.finish_reason is not None:
            parts += self._parser.end().parts
        delta = deltas.Delta()
        for part in self._with_inputs(parts, ended=completion.finish_reason is not None):
            if isinstance(part, deltas.TextDelta):
                tokens = self._tokens.take(part.spans)
                if part.kind == "content":
                    part.logprobs = self._logprobs.take(part.spans)
                else:
                    self.reasoning_tokens += len(tokens)
            if self._is_shown(part):
                delta.add(part)
        self._has_content = self._has_content or bool(delta.content)
        return delta

    def _with_inputs(self, parts: Iterable[Part], *, ended: bool) -> Iterator[Part]:
        """Yield the parts; calls of custom tools have their input instead of arguments."""
        for part in parts:
            if not isinstance(part, deltas.CallDelta):
                yield from self._end_input()
                yield part
                continue
            if part.name is not None:
                yield from self._end_input()
                if part.name in self._reading.customs:
                    reader = InputReader(plain=self._reading.structure is not None)
                    self._input = part.index, reader
            if self._input is not None:
                part.custom, part.arguments = True, self._input[1].push(part.arguments)
            if part.name is not None or part.arguments:
                yield part
        if ended:
            yield from self._end_input()

    def _end_input(self) -> Iterator[Part]:
        """End the open input, and yield the text that was held back."""
        if self._input is not None:
            index, reader = self._input
            self._input = None
            if text := reader.end():
                yield deltas.CallDelta(index, arguments=text, custom=True)

    @property
    def has_nothing(self) -> bool:
        """Return whether there are neither content nor calls so far."""
        return not self._has_content and not self._parser.num_calls

    def _is_shown(self, part: deltas.TextDelta | deltas.CallDelta) -> bool:
        if isinstance(part, deltas.CallDelta):
            return self._reading.parallel or part.index == 0
        return self._reading.reasoning or part.kind == "content"

    def finish_reason(self, reason: str | None) -> str | None:
        """Return the choice's finish reason: that of a call if there is one."""
        if reason != "stop" or not self._parser.num_calls:
            return reason
        return "function_call" if self._reading.functions else "tool_calls"

    def delta(self, found: deltas.Delta) -> Delta:
        """Return the parts as the delta of an event."""
        delta = Delta()
        if found.content:
            delta.content = found.content
        if found.reasoning:
            delta.reasoning = delta.reasoning_content = found.reasoning
        if found.calls:
            pieces = [self._piece(call, call.index) for call in found.calls]
            if self._reading.functions:  # at most one call, so one piece
                delta.function_call = pieces[0].function
            else:
                delta.tool_calls = pieces
        return delta

    def message(self, found: deltas.Delta) -> AssistantMessage:
        """Return the parts as the message of a whole answer."""
        message = AssistantMessage(found.content)
        if found.reasoning:
            message.reasoning = message.reasoning_content = found.reasoning
        if calls := [self._piece(call, UNSET) for call in found.calls]:
            if self._reading.functions:
                message.function_call = calls[0].function
            else:
                message.tool_calls = calls
            message.content = found.content or None
        return message

    def _piece(self, call: deltas.CallDelta, index: int | UnsetType) -> ToolCall:
        piece, name = ToolCall(index), UNSET if call.name is None else call.name
        if call.custom:
            piece.custom = CustomCall(name, call.arguments)
        else:
            piece.function = FunctionCall(name, call.arguments)
        if call.name is not None:
            piece.id = self._reading.new_call_id(call)
            piece.type = "custom" if call.custom else "function"
        return piece
