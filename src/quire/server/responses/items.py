"""Items of the Responses API as the chat that they are, and back."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from quire.server.body import convert
from quire.server.errors import invalid
from quire.server.json_text import read_object
from quire.server.openai.protocol import (
    CalledFunction,
    CalledTool,
    ChatMessage,
    ChatRequest,
    ChosenFunction,
    ChosenTool,
    FunctionDefinition,
    JsonSchema,
    ResponseFormat,
    ToolDefinition,
)
from quire.server.responses.protocol import (
    AnswerText,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputText,
    Item,
    MessageItem,
    NamedFunction,
    OutputItem,
    ReasoningItem,
    ResponsesRequest,
    TextFormat,
)

LOGPROBS = "message.output_text.logprobs"
_PREFIXES = {
    MessageItem: "msg",
    FunctionCallItem: "fc",
    FunctionCallOutputItem: "fco",
    ReasoningItem: "rs",
}
_SAME_NAME = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "priority",
    "cache_salt",
    "chat_template_kwargs",
)


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def read_items(given: str | list[dict[str, Any]]) -> list[Item]:
    """`input` as items, all of which have an id.

    Raises:
        ApiError: 400, naming the item and the field at fault.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not given:
        raise invalid("input is empty.", "input")
    items: list[Item] = []
    for index, raw in enumerate(given):
        item: Item = convert({"type": "message", **raw}, Item, f"input[{index}]")
        if item.id is None:
            item.id = new_id(_PREFIXES[type(item)])
        if isinstance(item, MessageItem) and isinstance(item.content, str):
            is_answer = item.role == "assistant"
            item.content = [AnswerText(item.content) if is_answer else InputText(item.content)]
        items.append(item)
    return items


def as_input(output: Sequence[OutputItem]) -> list[Item]:
    """An answer's items, as a client that sends them back would."""
    return read_items(msgspec.to_builtins(output)) if output else []


def as_chat(body: ResponsesRequest, earlier: Sequence[Item], items: Sequence[Item]) -> ChatRequest:
    """The same request of the chat API.

    Args:
        earlier: the conversation that goes on with `items`.

    Raises:
        ApiError: 400 where the fields contradict each other, or an item has no place.
    """
    messages = [ChatMessage("system", body.instructions)] if body.instructions else []
    messages += _messages([*earlier, *items], len(earlier))
    chat = ChatRequest(messages=messages)
    for name in _SAME_NAME:
        setattr(chat, name, getattr(body, name))
    chat.stream_options = body.stream_options
    chat.max_completion_tokens = body.max_output_tokens
    chat.logprobs = LOGPROBS in (body.include or [])
    chat.top_logprobs = body.top_logprobs
    if body.top_logprobs is not None and not chat.logprobs:
        raise invalid(f"top_logprobs needs include to have {LOGPROBS}.", "top_logprobs")
    if body.tools:
        chat.tools = [
            ToolDefinition(
                "function", FunctionDefinition(t.name, t.description, t.parameters, t.strict)
            )
            for t in body.tools
        ]
    choice = body.tool_choice
    if isinstance(choice, NamedFunction):
        chat.tool_choice = ChosenTool("function", ChosenFunction(choice.name))
    else:
        chat.tool_choice = choice
    if body.text is not None and body.text.format is not None:
        chat.response_format = _format(body.text.format)
    if body.reasoning is not None:
        chat.reasoning_effort = body.reasoning.effort
    return chat


def _format(wanted: TextFormat) -> ResponseFormat:
    if wanted.type != "json_schema":
        if wanted.schema is not None:
            raise invalid(
                f"text.format has a schema, but its type is {wanted.type}.", "text.format.schema"
            )
        return ResponseFormat(wanted.type)
    if wanted.schema is None:
        raise invalid("text.format.schema is missing.", "text.format.schema")
    return ResponseFormat(
        wanted.type, JsonSchema(wanted.name or "", wanted.schema, wanted.description)
    )


def _messages(items: Sequence[Item], num_earlier: int) -> list[ChatMessage]:
    """A message of the assistant's, the reasoning before it and its calls become one."""
    messages: list[ChatMessage] = []
    called: set[str] = set()
    thoughts = ""
    for index, item in enumerate(items, -num_earlier):
        where = f"input[{index}]" if index >= 0 else "previous_response_id"
        if isinstance(item, ReasoningItem):
            thoughts += "".join(part.text for part in item.content or [])
            continue
        if isinstance(item, MessageItem):
            messages.append(ChatMessage(item.role, _text(item.content)))
        elif isinstance(item, FunctionCallOutputItem):
            if item.call_id not in called:
                raise invalid(
                    f"There is no function call {item.call_id!r} before its output.",
                    f"{where}.call_id",
                )
            messages.append(ChatMessage("tool", _text(item.output), tool_call_id=item.call_id))
        else:
            called.add(item.call_id)
            if thoughts or not messages or messages[-1].role != "assistant":
                messages.append(ChatMessage("assistant"))
            calls = messages[-1].tool_calls or []
            messages[-1].tool_calls = [*calls, _call(item, where)]
        if thoughts and messages[-1].role == "assistant":
            messages[-1].reasoning_content = thoughts
        thoughts = ""
    return messages


def _call(item: FunctionCallItem, where: str) -> CalledTool:
    if read_object(item.arguments) is None:
        raise invalid(
            "The arguments of a function call are the text of a JSON object.", f"{where}.arguments"
        )
    return CalledTool(item.call_id, CalledFunction(item.name, item.arguments))


def _text(content: str | Sequence[InputText | AnswerText]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)
