"""POST /v1/messages and /v1/messages/count_tokens: chats in Anthropic's API."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from quire.server.anthropic import protocol
from quire.server.anthropic.answer import FRAMING, Answer, Options
from quire.server.anthropic.clearing import Cleared
from quire.server.anthropic.errors import AnthropicErrorBody
from quire.server.anthropic.tools import GivenTools, read_given_tools
from quire.server.anthropic.turns import Turn, as_chat, chat_messages, mend_roles, read_turns
from quire.server.contract import OF_ENGINE, OF_GENERATION, contract
from quire.server.errors import ApiError, renamed
from quire.server.http.body import read_request
from quire.server.http.json_text import json_response
from quire.server.notices import notices_of
from quire.server.openai.chat_request import count_chat, read_chat
from quire.server.openai.generation import respond
from quire.server.openai.protocol import ChatRequest
from quire.server.state import request_id, server_state

_TOOL = re.compile(r"tools\[(\d+)\]\.function\.parameters")
_NAMES = {
    "image": "messages",
    "response_format": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
}
"""Field names of the chat API → this API's names."""


@contract(
    body=protocol.MessagesRequest,
    answer=protocol.Message,
    events=dict[str, Any],
    errors=OF_GENERATION,
    error=AnthropicErrorBody,
)
async def create_message(request: Request) -> Response:
    """Continue a conversation, whole or as a stream; a disconnect aborts it."""
    body = await read_request(request, protocol.MessagesRequest, mend_roles)
    given = read_given_tools(request, body.tools or [])
    with _own_names(given):
        chat, cleared = await _read_chat(request, body, given)
        call, reading = read_chat(request, chat, f"msg_{request_id(request)}")
        options = Options(
            omits_thinking=body.thinking is not None and body.thinking.display == "omitted",
            eager=frozenset(given.eager),
            edits=UNSET
            if body.context_management is None
            else protocol.AppliedEdits(cleared.applied),
        )
        answer = Answer(call=call, reading=reading, options=options)
        return await respond(answer, request, stream=bool(body.stream), framing=FRAMING)


@contract(
    body=protocol.CountRequest,
    answer=protocol.TokenCount,
    errors=[HTTPStatus.NOT_FOUND, *OF_ENGINE],
    error=AnthropicErrorBody,
)
async def count_tokens(request: Request) -> Response:
    """Return the number of tokens in the prompt of a message."""
    body = await read_request(request, protocol.CountRequest, mend_roles)
    server_state(request).served_name(body.model)
    given = read_given_tools(request, body.tools or [])
    with _own_names(given):
        chat, cleared = await _read_chat(request, body, given)
        counted = protocol.TokenCount(await count_chat(request, chat))
    if body.context_management is not None:
        original = cleared.original_tokens
        counted.context_management = protocol.UneditedCount(
            counted.input_tokens if original is None else original
        )
    counted.warnings = notices_of(request)
    return json_response(counted)


async def _read_chat(
    request: Request, body: protocol.CountRequest, given: GivenTools
) -> tuple[ChatRequest, Cleared]:
    """Return the chat request, after the edits of `context_management`."""
    if body.thread is not None:
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            "thread is not supported: conversations are not stored; send all messages.",
            param="thread",
            code="thread_unsupported_request",
        )
    turns = await read_turns(request, body)
    chat = as_chat(request, body, turns, given)

    async def count(shorter: list[Turn]) -> int:
        return await count_chat(request, replace(chat, messages=chat_messages(shorter)))

    cleared = Cleared(turns, count)
    if body.context_management is not None:
        await cleared.apply(body.context_management)
        chat.messages = chat_messages(cleared.turns)
    return chat, cleared


def _own_names(given: GivenTools) -> AbstractContextManager[None]:
    """Rename fields in errors of the chat request to this API's names."""

    def name_of(theirs: str) -> str:
        if (tool := _TOOL.fullmatch(theirs)) is not None:
            return f"tools[{given.places[int(tool[1])]}].input_schema"
        return _NAMES.get(theirs, theirs)

    return renamed(name_of)
