"""POST /tokenize and /detokenize, as vLLM has them: what a request's prompt would be."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.engine.tokenizer_worker import ChatPrompt
from quire.server.body import decode, read_body
from quire.server.connection import while_connected
from quire.server.contract import OF_ENGINE, contract
from quire.server.errors import invalid
from quire.server.json_text import encode
from quire.server.openai.conversation import chat_prompt
from quire.server.openai.protocol import (
    ChatMessage,
    ChatRequest,
    Messages,
    Strict,
    ToolDefinition,
    Tools,
)
from quire.server.state import server_state

_ERRORS = (HTTPStatus.NOT_FOUND, *OF_ENGINE)
_OF_TEXT = ("add_special_tokens",)
_OF_CHAT = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")


class TokenizeRequest(Strict):
    """POST /tokenize: a text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    """Those that the model wants around every text; a chat template writes its own."""
    return_token_strs: bool | None = None
    messages: Messages[ChatMessage] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools[ToolDefinition] | None = None

    # Refused unless they say what would happen without them.
    chat_template: None = None


class TokenizeResponse(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str | None] | None = None


class DetokenizeRequest(Strict):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


class DetokenizeResponse(msgspec.Struct):
    prompt: str


@contract(body=TokenizeRequest, answer=TokenizeResponse, errors=_ERRORS)
async def tokenize(request: Request) -> Response:
    """The tokens of a text, or of a conversation in the model's template."""
    server = server_state(request)
    body = decode(await read_body(request, server.max_body_bytes), TokenizeRequest)
    server.served_name(body.model)
    engine = server.live_engine()
    work = engine.tokenize(
        _prompt(body, server.chat_template), body.add_special_tokens is not False
    )
    tokens = await while_connected(work, request.receive)
    answer = TokenizeResponse(len(tokens), engine.max_model_len, tokens)
    if body.return_token_strs:
        answer.token_strs = [engine.tokenizer.id_to_token(token) for token in tokens]
    return Response(encode(answer), media_type="application/json")


@contract(body=DetokenizeRequest, answer=DetokenizeResponse, errors=_ERRORS)
async def detokenize(request: Request) -> Response:
    """The text of tokens, control tokens included."""
    server = server_state(request)
    body = decode(await read_body(request, server.max_body_bytes), DetokenizeRequest)
    server.served_name(body.model)
    engine = server.live_engine()
    vocabulary = engine.resolved.config.model.vocab_size
    for token in (min(body.tokens, default=0), max(body.tokens, default=0)):
        if not 0 <= token < vocabulary:
            raise invalid(f"There is no token {token}; ids end at {vocabulary - 1}.", "tokens")
    text = await while_connected(engine.detokenize(body.tokens), request.receive)
    return Response(encode(DetokenizeResponse(text)), media_type="application/json")


def _prompt(body: TokenizeRequest, template: str | None) -> str | ChatPrompt:
    """Raises `ApiError`, 400, where it is neither a text nor a conversation, or both."""
    is_text = body.prompt is not None
    if is_text == (body.messages is not None):
        raise invalid("give either a prompt or messages.", "messages" if is_text else "prompt")
    for name in _OF_CHAT if is_text else _OF_TEXT:
        if getattr(body, name) is not None:
            other = "messages" if is_text else "a prompt"
            raise invalid(f"{name} goes with {other}.", name)
    if body.prompt is not None:
        return body.prompt
    assert body.messages is not None
    chat = ChatRequest(
        messages=body.messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
        tools=body.tools,
    )
    return chat_prompt(chat, template)
