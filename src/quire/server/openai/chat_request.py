"""Turns the request of a conversation into a generation, for all APIs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from msgspec import structs
from starlette.requests import Request

from quire.server.http.connection import while_connected
from quire.server.notices import Notice, all_notices, note
from quire.server.openai.calls import at_fault
from quire.server.openai.conversation import chat_prompt, custom_tools, plain_form
from quire.server.openai.custom import ONLY_SHOWN, Custom
from quire.server.openai.generation import Generation
from quire.server.openai.protocol import ChatRequest
from quire.server.openai.reasoning import template_kwargs
from quire.server.openai.sampling import chat_params, check_stream_options
from quire.server.openai.tools import NO_CUSTOMS, Reading, functions_of, read_tools, with_tools
from quire.server.request_options import request_options
from quire.server.state import server_state


def read_chat(
    request: Request,
    body: ChatRequest,
    response_id: str,
    customs: Mapping[str, Custom] = NO_CUSTOMS,
) -> tuple[Generation, Reading]:
    """Return a conversation's generation, and how to read its answer.

    Args:
        customs: the custom tools among the functions, by name, if they are functions already.

    Raises:
        ApiError, InvalidRequestError: names the wrong field.
    """
    server = server_state(request)
    model = server.served_name(body.model)
    engine = server.live_engine()
    check_stream_options(request, body)
    customs = customs or custom_tools(body)
    body = plain_form(request, body)
    reading = read_tools(body, server.parsers, customs)
    reading = replace(reading, functions=body.functions is not None)
    for name, custom in customs.items():
        if custom.is_loose and name != reading.named:
            note(request, Notice(f"{custom.place}.format", ONLY_SHOWN))
    body.chat_template_kwargs = template_kwargs(request, body)
    params = chat_params(body, engine.default_sampling_params, engine.resolved.config.max_logprobs)
    call = Generation(
        id=response_id,
        model=model,
        server=server,
        options=request_options(request, body),
        params=with_tools(params, body, reading, engine.tokenizer),
        prompts=[chat_prompt(body, server)],
        notices=all_notices(request),
        prompt_field="messages",
        limit_field="max_tokens" if body.max_completion_tokens is None else "max_completion_tokens",
        blame=partial(at_fault, functions_of(body), customs, engine) if body.tools else None,
    )
    return call, reading


async def count_chat(request: Request, body: ChatRequest, effort: str = "reasoning_effort") -> int:
    """Return the number of tokens in the prompt of a conversation in its plain form.

    Args:
        effort: what the client calls the effort.
    """
    server = server_state(request)
    read_tools(body, server.parsers)
    body = structs.replace(body, chat_template_kwargs=template_kwargs(request, body, effort))
    work = server.live_engine().tokenize(chat_prompt(body, server), True)
    return len(await while_connected(work, request.receive))
