"""Convert older and shorter forms of a chat request into the present one.

`functions` and `function_call` are older forms of `tools` and `tool_choice`. `allowed_tools` is a
choice among tools. A refusal is a text of the assistant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from quire.server.errors import invalid
from quire.server.openai.protocol import (
    CalledTool,
    ChatMessage,
    ChatRequest,
    ChosenTool,
    RefusalPart,
    TextPart,
    ToolDefinition,
)

_ID_DIGITS = 9
"""Templates that check a call's id require nine characters."""


def plain_form(body: ChatRequest) -> ChatRequest:
    """Return the request with tools in place of functions, and each message in its newest form.

    Raises:
        ApiError: 400 if both the old and the new form are given, or they contradict each other.
    """
    fields = _of_functions(body)
    tools = fields.get("tools", body.tools)
    choice = fields.get("tool_choice", body.tool_choice)
    if isinstance(choice, ChosenTool) and choice.type == "allowed_tools":
        fields["tools"], fields["tool_choice"] = _allowed(tools or [], choice)
    messages = _messages(body.messages)
    if messages is not None:
        fields["messages"] = messages
    return replace(body, **fields) if fields else body


def _of_functions(body: ChatRequest) -> dict[str, Any]:
    """Return the present fields for `functions` and `function_call`."""
    if body.functions is None:
        if body.function_call not in (None, "none", "auto"):
            raise invalid("function_call needs functions.", "function_call")
        return {}
    for name in ("tools", "tool_choice"):
        if getattr(body, name) is not None:
            raise invalid(f"functions and {name} exclude each other; send tools.", name)
    called = body.function_call
    choice = called if called is None or isinstance(called, str) else ChosenTool("function", called)
    return {
        "tools": [ToolDefinition("function", function) for function in body.functions],
        "tool_choice": choice,
        "parallel_tool_calls": False,
    }


def _allowed(
    tools: Sequence[ToolDefinition], choice: ChosenTool
) -> tuple[list[ToolDefinition], str]:
    """Return the allowed tools, and whether one must be called."""
    wanted = choice.allowed_tools
    where = "tool_choice.allowed_tools"
    if wanted is None:
        raise invalid(f"{where} is missing.", where)
    if not wanted.tools:
        raise invalid(f"{where}.tools is empty; set tool_choice to none.", f"{where}.tools")
    known = {tool.function.name for tool in tools}
    names = {tool.function.name for tool in wanted.tools}
    if missing := sorted(names - known):
        raise invalid(f"{where} names {missing[0]!r}, which is not in tools.", f"{where}.tools")
    return [tool for tool in tools if tool.function.name in names], wanted.mode


def _messages(given: Sequence[ChatMessage]) -> list[ChatMessage] | None:
    """Return the messages with tool calls instead of function calls, and refusals as text; None if
    nothing changes."""
    if not any(map(_is_older, given)):
        return None
    result: list[ChatMessage] = []
    called = 0
    for index, message in enumerate(given):
        if message.function_call is not None:
            if message.tool_calls:
                raise invalid(
                    "A message has tool_calls or a function_call, not both.",
                    f"messages[{index}].function_call",
                )
            called += 1
            call = CalledTool(_call_id(called), message.function_call)
            message = replace(message, tool_calls=[call], function_call=None)
        if message.role == "function":
            message = replace(message, role="tool", tool_call_id=_call_id(called))
        result.append(_with_refusal(message))
    return result


def _is_older(message: ChatMessage) -> bool:
    return (
        message.function_call is not None
        or message.role == "function"
        or message.refusal is not None
        or (
            isinstance(message.content, list)
            and any(isinstance(part, RefusalPart) for part in message.content)
        )
    )


def _with_refusal(message: ChatMessage) -> ChatMessage:
    """Return the message with its refusal as text."""
    content = message.content
    if isinstance(content, list):
        content = [
            TextPart(part.refusal) if isinstance(part, RefusalPart) else part for part in content
        ]
    if message.refusal:
        if isinstance(content, list):
            content = [*content, TextPart(message.refusal)]
        else:
            content = (content or "") + message.refusal
    return replace(message, content=content, refusal=None)


def _call_id(number: int) -> str:
    return f"{number:0{_ID_DIGITS}d}"
