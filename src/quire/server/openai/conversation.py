"""Turns a chat's messages and options into the prompt that the engine renders."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from quire.frontend.images.expand import ImagePrompt, pictured
from quire.frontend.workers.tokenizer_worker import ChatPrompt
from quire.server.errors import invalid
from quire.server.http.json_text import read_arguments
from quire.server.openai.protocol import CalledTool, ChatMessage, ChatRequest, RefusalPart, TextPart
from quire.server.openai.reasoning import chat_template_of
from quire.server.openai.tools import tool_definitions
from quire.server.state import ServerState

_MAY_BE_EMPTY = ("assistant", "tool")
"""Roles whose messages need no content."""


def chat_prompt(body: ChatRequest, template: str | None) -> ChatPrompt | ImagePrompt:
    """Return the conversation for the engine to render, with its images.

    Raises:
        ApiError: 400 if it is empty, or its options contradict each other.
    """
    if not body.messages:
        raise invalid("messages is empty.", "messages")
    add_prompt, resume = body.add_generation_prompt, bool(body.continue_final_message)
    if add_prompt and resume:
        raise invalid(
            "add_generation_prompt and continue_final_message cannot both be true.",
            "continue_final_message",
        )
    if resume and body.messages[-1].role != "assistant":
        raise invalid(
            "continue_final_message needs the last message to be the assistant's.",
            "continue_final_message",
        )
    return pictured(
        ChatPrompt(
            [_message(message, index) for index, message in enumerate(body.messages)],
            chat_template=template,
            add_generation_prompt=not resume if add_prompt is None else add_prompt,
            continue_final_message=resume,
            kwargs=body.chat_template_kwargs,
            tools=tool_definitions(body),
            documents=body.documents,
            add_special_tokens=bool(body.add_special_tokens),
        )
    )


def _message(message: ChatMessage, index: int) -> dict[str, Any]:
    """Return a message as templates expect it, with only the fields that are there.

    Raises:
        ApiError: 400 for a field that its role does not have, or lacks.
    """
    where = f"messages[{index}]"
    role, content, calls = message.role, message.content, message.tool_calls
    if calls and role != "assistant":
        raise invalid("Only the assistant calls tools.", f"{where}.tool_calls")
    if content is None and role not in _MAY_BE_EMPTY:
        raise invalid(f"{where}.content is missing.", f"{where}.content")
    if message.tool_call_id is not None and role != "tool":
        raise invalid(
            f"A message of the role {role} cannot have a tool_call_id.", f"{where}.tool_call_id"
        )
    text: str | list[dict[str, Any]]
    if content is None or isinstance(content, str):
        text = content or ""
    else:
        text = [to_builtins(part) for part in content if not isinstance(part, RefusalPart)]
    result: dict[str, Any] = {"role": role, "content": text}
    for name in ("name", "tool_call_id"):
        if (found := getattr(message, name)) is not None:
            result[name] = found
    if reasoning := message.reasoning_content or message.reasoning:
        result["reasoning_content"] = reasoning
    if calls:
        result["tool_calls"] = [_call(call) for call in calls]
    return result


def _call(call: CalledTool) -> dict[str, Any]:
    written = call.function.arguments
    arguments = written if isinstance(written, dict) else read_arguments(written or "")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def template_of(body: ChatRequest, server: ServerState) -> str | None:
    """Return the chat template of a request; None for the model's own.

    Raises:
        ApiError: 400 for a template of its own that is not trusted, or for documents that the
            template does not use.
    """
    template = body.chat_template or server.options.chat_template
    if body.chat_template is not None and not server.options.trust_request_chat_template:
        raise invalid(
            "chat_template is not accepted from requests; start the server with "
            "--trust-request-chat-template to allow it.",
            "chat_template",
        )
    if body.documents and "documents" not in (template or chat_template_of(server)):
        raise invalid("this model's chat template does not use documents.", "documents")
    return template


def echoed(body: ChatRequest) -> str:
    """Return the text that `echo` prepends: the last message, if the assistant continues it."""
    if not body.echo or not body.messages:
        return ""
    last = body.messages[-1]
    if last.role != "assistant" and body.add_generation_prompt is not False:
        return ""
    if isinstance(last.content, list):
        return "".join(part.text for part in last.content if isinstance(part, TextPart))
    return last.content or ""
