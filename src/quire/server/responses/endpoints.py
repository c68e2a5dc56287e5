"""POST /v1/responses, and the endpoints of stored responses."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.frontend.images.prompts import ImagePrompt
from quire.frontend.workers.tokenizer_worker import ChatPrompt
from quire.server.contract import OF_ENGINE, OF_GENERATION, contract
from quire.server.errors import invalid, not_supported, renamed
from quire.server.http.body import read_query, read_request
from quire.server.http.connection import while_connected
from quire.server.http.json_text import json_response
from quire.server.message_parts import mend_response
from quire.server.notices import Warnings, ignore, notices_of
from quire.server.openai.chat_request import count_chat, read_chat
from quire.server.openai.conversation import chat_prompt
from quire.server.openai.generation import Generation, respond
from quire.server.openai.protocol import ChatRequest
from quire.server.openai.reasoning import template_kwargs
from quire.server.responses import background
from quire.server.responses.answer import begin_answer
from quire.server.responses.conversation import as_chat
from quire.server.responses.events import stream_events
from quire.server.responses.input import read_input
from quire.server.responses.item_types import Item
from quire.server.responses.protocol import (
    ENCRYPTED,
    LOGPROBS,
    DeletedResponse,
    IncludeQuery,
    InputTokens,
    ItemList,
    ItemsQuery,
    ResponseObject,
    ResponsesRequest,
    RetrieveQuery,
)
from quire.server.responses.store import ResponseStore
from quire.server.responses.tools import ToolSet, read_tool_set
from quire.server.state import request_id, server_state

_NAMES = {
    "image": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema.schema": "text.format.schema",
}
"""Field names of the chat API → this API's names."""


def _own_names(tools: ToolSet) -> AbstractContextManager[None]:
    """Rename fields in errors of the chat request to this API's names."""
    return renamed(lambda theirs: _NAMES.get(theirs) or tools.place(theirs))


@contract(body=ResponsesRequest, answer=ResponseObject, events=dict[str, Any], errors=OF_GENERATION)
async def create_response(request: Request) -> Response:
    """Answer a conversation: whole, as events, or in the background."""
    body = await read_request(request, ResponsesRequest, mend_response)
    store = _store(request)
    _check(request, body, store)
    tools = read_tool_set(request, body.tools or [], body.tool_choice)
    items, earlier = await read_input(request, body.input, store.item), _earlier(body, store)
    await asyncio.sleep(0)  # reading a long conversation must not block the event loop
    with _own_names(tools):
        chat = as_chat(body, [*earlier, *items], tools)
        kwargs = template_kwargs(request, chat, "reasoning.effort")
        chat.chat_template_kwargs, chat.reasoning_effort = kwargs, None
        await asyncio.sleep(0)
        response_id = store.new_id(request_id(request))
        call, reading = read_chat(request, chat, response_id, tools.customs)
        call.prompt_field, call.limit_field = "input", "max_output_tokens"
        if body.truncation == "auto":
            call.prompts = [await while_connected(_shortened(chat, call), request.receive)]

        def keep(response: ResponseObject) -> None:
            store.put(response, earlier, items)

        answer = begin_answer(body, call, reading, tools, keep if _stores(body, store) else None)
        if body.background:
            stream = bool(body.stream)
            log = await background.start(request, answer, store, earlier, items, stream=stream)
            return json_response(answer.response) if log is None else stream_events(log, 0)
        return await respond(answer, request, stream=bool(body.stream), framing=answer.framing)


@contract(body=ResponsesRequest, answer=InputTokens, errors=[HTTPStatus.NOT_FOUND, *OF_ENGINE])
async def count_input_tokens(request: Request) -> Response:
    """Return the number of tokens in the prompt of a response."""
    body = await read_request(request, ResponsesRequest, mend_response)
    store = _store(request)
    tools = read_tool_set(request, body.tools or [], body.tool_choice)
    items = [*_earlier(body, store), *await read_input(request, body.input, store.item)]
    with _own_names(tools):
        server_state(request).served_name(body.model)
        count = await count_chat(request, as_chat(body, items, tools), "reasoning.effort")
    return json_response(InputTokens(count, warnings=notices_of(request)))


@contract(
    query=RetrieveQuery, answer=ResponseObject, events=dict[str, Any], errors=[HTTPStatus.NOT_FOUND]
)
async def retrieve_response(request: Request) -> Response:
    """Return a stored response so far, or its events from any number on."""
    query = read_query(request, RetrieveQuery)
    stored = _store(request).get(request.path_params["id"])
    making, warnings = stored.making, _ignored(request, query)
    if not query.stream:
        if query.starting_after is not None:
            raise invalid("starting_after needs stream to be true.", "starting_after")
        if making is not None:
            making.flush()
        found = stored.response
        if warnings:
            found = msgspec.structs.replace(found, warnings=[*(found.warnings or ()), *warnings])
        return json_response(found)
    if making is None or making.events is None:
        raise invalid(
            "Only responses with background = true and stream = true replay their events.", "stream"
        )
    after = query.starting_after
    return stream_events(making.events, 0 if after is None else after + 1)


@contract(answer=DeletedResponse, errors=[HTTPStatus.NOT_FOUND])
async def delete_response(request: Request) -> Response:
    """Delete a stored response; conversations that continued it keep its items."""
    found = request.path_params["id"]
    _store(request).delete(found)
    return json_response(DeletedResponse(found))


@contract(answer=ResponseObject, errors=[HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND])
async def cancel_response(request: Request) -> Response:
    """Cancel a background response; a finished one does not change."""
    stored = _store(request).get(request.path_params["id"])
    if not stored.response.background:
        raise invalid("Only a response with background = true can be cancelled.", "id")
    if stored.making is not None and not stored.is_made:
        stored.making.task.cancel()
        await asyncio.wait({stored.making.task})
    return json_response(stored.response)


@contract(query=ItemsQuery, answer=ItemList, errors=[HTTPStatus.NOT_FOUND])
async def list_input_items(request: Request) -> Response:
    """Return a page of the conversation that a response answers."""
    query = read_query(request, ItemsQuery)
    items = [*_store(request).get(request.path_params["id"]).items]
    if query.order == "desc":
        items.reverse()
    if query.after is not None:
        ids = [item.id for item in items]
        if query.after not in ids:
            raise invalid(f"There is no item {query.after!r}.", "after")
        items = items[ids.index(query.after) + 1 :]
    page = items[: query.limit]
    ends = (page[0].id, page[-1].id) if page else (None, None)
    warnings = _ignored(request, query)
    return json_response(ItemList(page, *ends, has_more=len(items) > len(page), warnings=warnings))


def _ignored(request: Request, query: IncludeQuery) -> Warnings:
    """Return the notices of a query's fields without effect."""
    if query.include or query.include_list:
        ignore(request, "include", "A response has what it was created with.")
    if query.include_obfuscation:
        ignore(request, "include_obfuscation", "Nothing is added to events.")
    return notices_of(request)


async def _shortened(chat: ChatRequest, call: Generation) -> ChatPrompt | ImagePrompt:
    """Return the prompt without the oldest turns, so that it fits the context.

    It begins with a user's message, the first from which the rest fits; system and developer
    messages before it stay. The last user's message stays even if it does not fit.
    """
    server, messages = call.server, chat.messages
    room = server.engine.max_model_len - (call.params.max_tokens or 1)

    def behind(start: int) -> ChatPrompt | ImagePrompt:
        kept = [m for m in messages[:start] if m.role in ("system", "developer")]
        chat.messages = [*kept, *messages[start:]]
        return chat_prompt(chat, server)

    starts = [index for index, message in enumerate(messages) if message.role == "user"]
    first, last = 0, len(starts) - 1
    while first < last:
        middle = (first + last) // 2
        tokens = await server.engine.tokenize(behind(starts[middle]), True)
        if len(tokens) <= room:
            last = middle
        else:
            first = middle + 1
    return behind(starts[first] if first else 0)


def _check(request: Request, body: ResponsesRequest, store: ResponseStore) -> None:
    """Check fields against each other and the server.

    Raises:
        ApiError: 400 for fields that contradict each other, or are not supported.
    """
    include = body.include or []
    for name in include:
        if name not in (LOGPROBS, ENCRYPTED):
            ignore(request, "include", f"Responses do not have {name[:64]!r}.")
    if body.top_logprobs is not None and LOGPROBS not in include:
        ignore(request, "top_logprobs", f"It has no effect unless include has {LOGPROBS}.")
    if body.stream_options is not None and body.stream_options.continuous_usage_stats:
        raise not_supported("stream_options.continuous_usage_stats")
    if body.store and not store.max_responses:
        ignore(request, "store", "This server stores no responses (--max-stored-responses 0).")
    if body.background and not _stores(body, store):
        raise invalid("A background response must be stored.", "background")


def _stores(body: ResponsesRequest, store: ResponseStore) -> bool:
    return body.store is not False and store.max_responses > 0


def _earlier(body: ResponsesRequest, store: ResponseStore) -> list[Item]:
    """Return the continued conversation.

    Raises:
        ApiError: 404 if it is not stored, 400 if it has not ended.
    """
    if body.previous_response_id is None:
        return []
    stored = store.get(body.previous_response_id, "previous_response_id")
    if stored.response.status in ("queued", "in_progress"):
        raise invalid("The previous response has not ended yet.", "previous_response_id")
    return stored.conversation()


def _store(request: Request) -> ResponseStore:
    return cast(ResponseStore, request.app.state.responses)
