"""Translate a request of the Responses API to a chat request."""

from __future__ import annotations

from collections.abc import Sequence

from quire.server.errors import invalid
from quire.server.openai import protocol as openai
from quire.server.openai.custom import PARAMETER
from quire.server.responses.item_types import (
    AnswerText,
    CustomCallItem,
    FunctionCallItem,
    InputImage,
    InputText,
    Item,
    MessageItem,
    ReasoningItem,
    RefusalText,
)
from quire.server.responses.protocol import LOGPROBS, ResponsesRequest, TextFormat
from quire.server.responses.tools import ToolSet

_READ_APART = {"tools", "tool_choice", "top_logprobs", "rules"}
_SAME_NAME = {*ResponsesRequest.__struct_fields__} & {
    *openai.ChatRequest.__struct_fields__
} - _READ_APART
"""Fields that both APIs call the same."""


def as_chat(body: ResponsesRequest, items: Sequence[Item], tools: ToolSet) -> openai.ChatRequest:
    """Return the same request of the chat API.

    Args:
        items: the whole conversation.

    Raises:
        ApiError: 400 for fields that contradict each other.
    """
    messages = [openai.ChatMessage("system", body.instructions)] if body.instructions else []
    chat = openai.ChatRequest(messages=[*messages, *_messages(items, tools)])
    for name in _SAME_NAME:
        setattr(chat, name, getattr(body, name))
    chat.max_completion_tokens = body.max_output_tokens
    chat.logprobs = LOGPROBS in (body.include or [])
    chat.top_logprobs = body.top_logprobs if chat.logprobs else None
    chat.tools, chat.tool_choice = tools.definitions, tools.choice
    if body.text is not None and body.text.format is not None:
        chat.response_format = _format(body.text.format)
    if body.reasoning is not None:
        chat.reasoning_effort = body.reasoning.effort
    return chat


def _format(wanted: TextFormat) -> openai.ResponseFormat:
    if wanted.type != "json_schema":
        if wanted.schema is not None:
            raise invalid(
                f"text.format has a schema, but its type is {wanted.type}.", "text.format.schema"
            )
        return openai.ResponseFormat(wanted.type)
    if wanted.schema is None:
        raise invalid("text.format.schema is missing.", "text.format.schema")
    return openai.ResponseFormat(wanted.type, openai.JsonSchema(wanted.schema))


def _messages(items: Sequence[Item], tools: ToolSet) -> list[openai.ChatMessage]:
    """Return the items as chat messages.

    Consecutive reasoning, message and calls of an assistant become one message.
    """
    messages: list[openai.ChatMessage] = []
    thoughts: list[str] = []
    for item in items:
        if isinstance(item, ReasoningItem):
            thoughts += [part.text for part in item.content or []]
            continue
        is_call = isinstance(item, FunctionCallItem | CustomCallItem)
        is_answer = is_call or (isinstance(item, MessageItem) and item.role == "assistant")
        if thoughts and not is_answer:  # an answer that ended while reasoning
            messages.append(_answer(None, thoughts))
        if isinstance(item, FunctionCallItem | CustomCallItem):
            if thoughts or not messages or messages[-1].role != "assistant":
                messages.append(_answer(None, thoughts))
            messages[-1].tool_calls = [*(messages[-1].tool_calls or []), _call(item, tools)]
        elif not isinstance(item, MessageItem):
            messages.append(
                openai.ChatMessage("tool", _content(item.output), tool_call_id=item.call_id)
            )
        elif is_answer:
            messages.append(_answer(_content(item.content), thoughts))
        else:
            messages.append(openai.ChatMessage(item.role, _content(item.content)))
        thoughts.clear()
    return [*messages, _answer(None, thoughts)] if thoughts else messages


def _answer(content: str | list[openai.Part] | None, thoughts: Sequence[str]) -> openai.ChatMessage:
    return openai.ChatMessage("assistant", content, reasoning_content="".join(thoughts) or None)


def _call(item: FunctionCallItem | CustomCallItem, tools: ToolSet) -> openai.CalledTool:
    name = tools.name_of(item.name, item.namespace)
    if isinstance(item, CustomCallItem):
        function = openai.CalledFunction(name, {PARAMETER: item.input})
    else:
        function = openai.CalledFunction(name, item.arguments)
    return openai.CalledTool(id=item.call_id, function=function)


Parts = Sequence[InputText | AnswerText | RefusalText | InputImage]


def _content(content: str | Parts) -> str | list[openai.Part]:
    """Return a message's text, or its parts if it has images."""
    if isinstance(content, str) or not any(isinstance(part, InputImage) for part in content):
        return _text(content)
    return [
        openai.ImagePart(openai.ImageAddress(part.image_url))
        if isinstance(part, InputImage)
        else openai.TextPart(_text([part]))
        for part in content
    ]


def _text(content: str | Parts) -> str:
    """Return the text of a message without images."""
    if isinstance(content, str):
        return content
    return "\n".join(
        part.refusal if isinstance(part, RefusalText) else part.text
        for part in content
        if not isinstance(part, InputImage)
    )
