"""POST /v1/messages and /v1/messages/count_tokens: chats, under Anthropic's names and events."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.server.anthropic.protocol import (
    AnthropicError,
    AnthropicErrorBody,
    CountRequest,
    Message,
    MessagesRequest,
    MessageUsage,
    TokenCount,
)
from quire.server.anthropic.translate import as_chat
from quire.server.body import decode, read_body
from quire.server.connection import while_connected
from quire.server.contract import OF_ENGINE, OF_GENERATION, Endpoint, contract
from quire.server.errors import closes, describe, headers_of, log_unexpected, not_supported
from quire.server.event_stream import Framing
from quire.server.json_text import encode, read_object
from quire.server.linger import LingeringResponse
from quire.server.openai.chat import ChatAnswer, read_chat
from quire.server.openai.conversation import chat_prompt
from quire.server.openai.generation import completions, respond
from quire.server.openai.tools import ChoiceReader, read_tools
from quire.server.state import request_id, server_state
from quire.server.tools.deltas import CallDelta, Delta, TextDelta

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_KINDS = {"content": "text", "reasoning": "thinking"}
"""Blocks by what they hold; also the name of their text."""
_ERROR_TYPES = {
    HTTPStatus.BAD_REQUEST: "invalid_request_error",
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}


def _anthropic_errors(endpoint: Endpoint) -> Endpoint:
    """Errors in Anthropic's shape."""

    @wraps(endpoint)
    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            raise
        except Exception as error:
            log_unexpected(error)
            status, body = _error(error)
            headers = headers_of(error)
            kind = LingeringResponse if closes(headers) else Response
            return kind(encode(body), status, headers, "application/json")

    return answered


@contract(
    body=MessagesRequest,
    answer=Message,
    events=dict[str, Any],
    errors=OF_GENERATION,
    error=AnthropicErrorBody,
)
@_anthropic_errors
async def create_message(request: Request) -> Response:
    """Continue a conversation, whole or as a stream; the work ends when the client goes."""
    server = server_state(request)
    body = decode(await read_body(request, server.max_body_bytes), MessagesRequest)
    thinking, reasons = body.thinking, server.parsers.reasoning is not None
    if thinking is not None and thinking.budget_tokens is not None and reasons:
        raise not_supported("thinking.budget_tokens")
    call, reading = read_chat(request, as_chat(body), f"msg_{request_id(request)}")
    answer = _Answer(call, reading)
    return await respond(answer, request, stream=bool(body.stream), framing=FRAMING)


@contract(
    body=CountRequest,
    answer=TokenCount,
    errors=[HTTPStatus.NOT_FOUND, *OF_ENGINE],
    error=AnthropicErrorBody,
)
@_anthropic_errors
async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of a message would have."""
    server = server_state(request)
    body = decode(await read_body(request, server.max_body_bytes), CountRequest)
    server.served_name(body.model)
    chat = as_chat(body)
    read_tools(chat, server.parsers)
    work = server.live_engine().tokenize(chat_prompt(chat, server.chat_template), True)
    tokens = await while_connected(work, request.receive)
    return Response(encode(TokenCount(len(tokens))), media_type="application/json")


def _error(error: Exception) -> tuple[HTTPStatus, AnthropicErrorBody]:
    status, body = describe(error)
    kind = _ERROR_TYPES.get(status, "api_error")
    return status, AnthropicErrorBody(AnthropicError(kind, body.error.message))


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (
        kind.encode(), encode({"type": kind, **fields})
    )  # fmt: skip


def _error_event(error: Exception) -> bytes:
    return b"event: error\ndata: " + encode(_error(error)[1]) + b"\n\n"


FRAMING = Framing(_error_event, b"", _event("ping"))


@dataclass(slots=True)
class _Answer(ChatAnswer):
    """A message, whole or as a `StreamedAnswer`: blocks one after another."""

    reader: ChoiceReader | None = None
    num_blocks: int = 0
    open_block: str | None = None
    """Its type."""

    async def complete(self) -> Message:
        """The whole answer."""
        output = await self.final()
        [completion] = completions(output)
        message = self.message()
        for part in self.read(completion, output).parts:
            block = self.block(part)
            if isinstance(part, CallDelta):
                block["input"] = _input(part.arguments)
            else:
                block[_KINDS[part.kind]] = part.text
            message.content.append(block)
        message.stop_reason, message.stop_sequence = self.stop(completion)
        return message

    def events(self, prompt: int, output: RequestOutput) -> bytes:
        """What an output adds, in blocks that are closed where another one begins."""
        self.used.add(prompt, output)
        parts: list[bytes] = []
        if self.reader is None:
            parts.append(_event("message_start", message=self.message()))
        for completion in completions(output):
            for part in self.read(completion, output).parts:
                parts += self.part_events(part)
            if completion.finish_reason is not None:
                parts += self.end()
                reason, sequence = self.stop(completion)
                stop = {"stop_reason": reason, "stop_sequence": sequence}
                parts.append(_event("message_delta", delta=stop, usage=self.usage()))
        return b"".join(parts)

    def last_events(self) -> bytes:
        return _event("message_stop")

    def read(self, completion: CompletionOutput, output: RequestOutput) -> Delta:
        if self.reader is None:
            self.reader = self.new_reader(output)
        return self.reader.read(completion)

    def stop(self, completion: CompletionOutput) -> tuple[str | None, str | None]:
        """Why it ended, and the stop sequence where it was one."""
        assert self.reader is not None
        if isinstance(completion.stop_reason, str):
            return "stop_sequence", completion.stop_reason
        reason = self.reader.finish_reason(completion.finish_reason)
        return _STOP_REASONS.get(reason or "", reason), None

    def part_events(self, part: TextDelta | CallDelta) -> list[bytes]:
        """More of a block, which is begun if it is not the one that is open."""
        if isinstance(part, CallDelta):
            events = [] if part.name is None else self.begin(self.block(part))
            change = {"type": "input_json_delta", "partial_json": part.arguments}
        else:
            kind = _KINDS[part.kind]
            events = [] if kind == self.open_block else self.begin(self.block(part))
            change = {"type": f"{kind}_delta", kind: part.text}
        return [*events, _event("content_block_delta", index=self.num_blocks - 1, delta=change)]

    def begin(self, block: dict[str, Any]) -> list[bytes]:
        events = self.end()
        self.open_block = block["type"]
        self.num_blocks += 1
        index = self.num_blocks - 1
        return [*events, _event("content_block_start", index=index, content_block=block)]

    def end(self) -> list[bytes]:
        """Close the open block."""
        if self.open_block is None:
            return []
        self.open_block = None
        return [_event("content_block_stop", index=self.num_blocks - 1)]

    def block(self, part: TextDelta | CallDelta) -> dict[str, Any]:
        """The empty block of a part that begins one."""
        if isinstance(part, CallDelta):
            call_id = self.reading.new_call_id()
            return {"type": "tool_use", "id": call_id, "name": part.name, "input": {}}
        if part.kind == "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "text", "text": ""}

    def message(self) -> Message:
        return Message(self.call.id, self.call.model, [], self.usage())

    def usage(self) -> MessageUsage:
        usage = self.used.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        return MessageUsage(usage.prompt_tokens - cached, usage.completion_tokens, cached)


def _input(written: str) -> msgspec.Raw:
    """Return a call's arguments as an object; what is none, as its text under `arguments`."""
    found = read_object(written or "{}")
    try:
        return msgspec.Raw(encode({"arguments": written} if found is None else found))
    except RecursionError:
        return msgspec.Raw(encode({"arguments": written}))
