"""POST /tokenize and /detokenize, as in vLLM: the tokens of a request's prompt."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.frontend.images.prompts import ImagePrompt
from quire.frontend.workers.tokenizer_worker import ChatPrompt
from quire.server.contract import OF_ENGINE, contract
from quire.server.errors import invalid, renamed
from quire.server.http.body import read_request
from quire.server.http.connection import while_connected
from quire.server.http.json_text import json_response
from quire.server.message_parts import mend_chat
from quire.server.notices import Warnings, notices_of
from quire.server.openai.conversation import chat_prompt, plain_form
from quire.server.openai.protocol import ChatMessage, ChatRequest
from quire.server.openai.tool_types import ChatTool
from quire.server.rules import Messages, Strict, Tools
from quire.server.state import server_state
from quire.server.turns import decoded, in_turns, spelled

_ERRORS = (HTTPStatus.NOT_FOUND, *OF_ENGINE)
_OF_CHAT = (
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "chat_template",
    "tools",
)


_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")


class TokenizeRequest(Strict):
    """POST /tokenize: a text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    """Add the model's special tokens. Default: true for a text, false for a conversation, whose
    template writes its own."""
    return_token_strs: bool | None = None
    messages: Messages[ChatMessage] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools[ChatTool] | None = None
    chat_template: str | None = None
    """Jinja source that replaces the model's template; needs --trust-request-chat-template."""


class TokenizeResponse(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str | None] | None = None
    warnings: Warnings = msgspec.UNSET


class DetokenizeRequest(Strict):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


class DetokenizeResponse(msgspec.Struct):
    prompt: str
    warnings: Warnings = msgspec.UNSET


@contract(body=TokenizeRequest, answer=TokenizeResponse, errors=_ERRORS)
async def tokenize(request: Request) -> Response:
    """Return the tokens of a text, or of a conversation in the model's template."""
    server = server_state(request)
    body = await read_request(request, TokenizeRequest, mend_chat)
    server.served_name(body.model)
    engine = server.live_engine()
    work = engine.tokenize(_prompt(request, body), body.add_special_tokens is not False)
    is_chat = body.messages is not None
    with renamed(lambda name: "messages" if is_chat and name in ("prompt", "image") else name):
        tokens = await while_connected(work, request.receive)
    answer = TokenizeResponse(len(tokens), engine.max_model_len, tokens)
    if body.return_token_strs:
        answer.token_strs = await in_turns(spelled(engine.tokenizer, tokens))
    answer.warnings = notices_of(request)
    return json_response(answer)


@contract(body=DetokenizeRequest, answer=DetokenizeResponse, errors=_ERRORS)
async def detokenize(request: Request) -> Response:
    """Return the text of tokens, control tokens included."""
    server = server_state(request)
    body = await read_request(request, DetokenizeRequest)
    server.served_name(body.model)
    engine = server.live_engine()
    vocabulary = engine.resolved.config.model.vocab_size
    for token in (min(body.tokens, default=0), max(body.tokens, default=0)):
        if not 0 <= token < vocabulary:
            raise invalid(f"There is no token {token}; ids end at {vocabulary - 1}.", "tokens")
    work = in_turns(decoded(engine.tokenizer, body.tokens, skip_special_tokens=False))
    text = await while_connected(work, request.receive)
    return json_response(DetokenizeResponse(text, notices_of(request)))


class TokenizerInfo(msgspec.Struct):
    """Facts about the tokenizer, under Hugging Face's names."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token_id: int | None
    eos_token_id: int | None
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    special_tokens: dict[str, str]
    """Role (such as `bos_token`) → token, of every role."""
    chat_template: str | None


@contract(answer=TokenizerInfo, errors=OF_ENGINE)
async def tokenizer_info(request: Request) -> Response:
    """Return the tokenizer's size, special tokens and chat template."""
    server = server_state(request)
    engine = server.live_engine()
    tokenizer = engine.tokenizer
    answer = TokenizerInfo(
        tokenizer_class=type(tokenizer).__name__,
        vocab_size=tokenizer.vocab_size,
        model_max_length=engine.max_model_len,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **{name: tokenizer.special_tokens.get(name) for name in _ROLES},
        special_tokens=dict(tokenizer.special_tokens),
        chat_template=server.options.chat_template or tokenizer.chat_template,
    )
    return json_response(answer)


def _prompt(request: Request, body: TokenizeRequest) -> str | ChatPrompt | ImagePrompt:
    """Return the prompt; raise `ApiError`, 400, unless there is either a text or a conversation."""
    is_text = body.prompt is not None
    if is_text == (body.messages is not None):
        raise invalid("Give either a prompt or messages.", "messages" if is_text else "prompt")
    if body.prompt is not None:
        for name in _OF_CHAT:
            if getattr(body, name) is not None:
                raise invalid(f"{name} needs messages.", name)
        return body.prompt
    assert body.messages is not None
    fields = {name: getattr(body, name) for name in (*_OF_CHAT, "add_special_tokens")}
    chat = ChatRequest(messages=body.messages, **fields)
    return chat_prompt(plain_form(request, chat), server_state(request))
