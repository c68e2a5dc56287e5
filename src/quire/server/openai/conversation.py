"""Turns a chat's messages and options into the prompt that the engine renders.

Older and shorter forms of a request become the present one. `functions` and `function_call` are
older forms of `tools` and `tool_choice`. `allowed_tools` is a choice among tools. A refusal is a
text of the assistant.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace
from starlette.requests import Request

from quire.core.outputs import RequestOutput
from quire.frontend.images.prompts import ImagePrompt, pictured
from quire.frontend.workers.tokenizer_worker import ChatPrompt
from quire.server.errors import invalid
from quire.server.http.json_text import read_arguments
from quire.server.openai import tool_types
from quire.server.openai.custom import Custom, as_function
from quire.server.openai.protocol import (
    ROLES,
    CalledTool,
    ChatMessage,
    ChatRequest,
    RefusalPart,
    TextPart,
)
from quire.server.openai.reasoning import chat_template_of
from quire.server.openai.tools import tool_definitions
from quire.server.state import MAX_NAME, ServerState
from quire.server.tool_results import without_images
from quire.server.turns import Turns, decoded

_ROLE = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
"""What may be a role. It reaches the prompt, so it must be no control token."""
_MAY_BE_EMPTY = ("assistant", "tool")
"""Roles whose messages need no content."""


def chat_prompt(body: ChatRequest, server: ServerState) -> ChatPrompt | ImagePrompt:
    """Return the conversation for the engine to render, with its images.

    Raises:
        ApiError: 400 if it is empty, its options contradict each other, or `_template_of` raises.
    """
    if not body.messages:
        raise invalid("messages is empty.", "messages")
    defaults = server.options.default_chat_template_kwargs
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
            chat_template=_template_of(body, server),
            add_generation_prompt=not resume if add_prompt is None else add_prompt,
            continue_final_message=resume,
            kwargs=(defaults or {}) | (body.chat_template_kwargs or {}) or None,
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
    if message.tool_call_id and role != "tool" and role in ROLES:
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
        if found := getattr(message, name):
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


def _template_of(body: ChatRequest, server: ServerState) -> str | None:
    """Return the chat template of a request; None for the model's own.

    Raises:
        ApiError: 400 for a template of its own that is not trusted, or for documents or roles that
            the template does not use.
    """
    template = body.chat_template or server.options.chat_template
    if body.chat_template is not None and not server.options.trust_request_chat_template:
        raise invalid(
            "chat_template is not accepted from requests; start the server with "
            "--trust-request-chat-template to allow it.",
            "chat_template",
        )
    source, known = template or chat_template_of(server), {*ROLES}
    for index, message in enumerate(body.messages):
        if message.role in known:
            continue
        known.add(message.role)
        if not _names(source, message.role):
            where = f"messages[{index}].role"
            raise invalid(
                f"{where} is {message.role[:MAX_NAME]!r}; it may be {', '.join(ROLES)}, or another "
                "one that the model's chat template names.",
                where,
            )
    if body.documents and "documents" not in source:
        raise invalid("This model's chat template does not use documents.", "documents")
    return template


def _names(template: str, role: str) -> bool:
    """Return whether a template has `role` as a quoted text."""
    quoted = (f"'{role}'", f'"{role}"')
    return bool(_ROLE.fullmatch(role)) and any(each in template for each in quoted)


def rendered(output: RequestOutput, body: ChatRequest, server: ServerState) -> Turns[str | None]:
    """Return what the template made of the messages, as the model reads it; None unless asked."""
    if not body.return_prompt_text:
        return None
    tokenizer, token_ids = server.engine.tokenizer, output.prompt_token_ids
    return (yield from decoded(tokenizer, token_ids, skip_special_tokens=False))


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


_ID_DIGITS = 9
"""Templates that check a call's id require nine characters."""


def plain_form(request: Request, body: ChatRequest) -> ChatRequest:
    """Return the request with tools in place of functions, functions in place of custom tools, and
    each message in its newest form.

    Notes replace images in results of tools, unless the model reads them.

    Raises:
        ApiError: 400 if both the old and the new form are given, or they contradict each other.
    """
    fields = _of_functions(body)
    tools = [_plain_tool(tool) for tool in fields.get("tools", body.tools) or ()]
    if any(isinstance(tool, tool_types.CustomToolDefinition) for tool in body.tools or ()):
        fields["tools"] = tools
    choice = fields.get("tool_choice", body.tool_choice)
    if isinstance(choice, tool_types.ChosenTool) and choice.type == "allowed_tools":
        fields["tools"], fields["tool_choice"] = _allowed(tools, choice)
    without_images(request, body.messages)
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
    choice = called if called is None or isinstance(called, str) else tool_types.ChosenTool(called)
    return {
        "tools": [tool_types.ToolDefinition(function) for function in body.functions],
        "tool_choice": choice,
        "parallel_tool_calls": False,
    }


def custom_tools(body: ChatRequest) -> dict[str, Custom]:
    """Return the custom tools by name."""
    return {
        tool.custom.name: Custom(tool.custom, f"tools[{index}].custom")
        for index, tool in enumerate(body.tools or ())
        if isinstance(tool, tool_types.CustomToolDefinition)
    }


def _plain_tool(tool: tool_types.ChatTool) -> tool_types.ToolDefinition:
    if isinstance(tool, tool_types.CustomToolDefinition):
        return tool_types.ToolDefinition(as_function(tool.custom))
    return tool


def _allowed(
    tools: Sequence[tool_types.ToolDefinition], choice: tool_types.ChosenTool
) -> tuple[list[tool_types.ToolDefinition], str]:
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
    """Return the messages with tool calls instead of function calls, an id of each call, and
    refusals as text; None if nothing changes."""
    if not any(map(_is_older, given)):
        return None
    result: list[ChatMessage] = []
    called = 0
    waiting: deque[str] = deque()
    """Ids of calls without a result."""
    for index, message in enumerate(given):
        if message.function_call is not None:
            if message.tool_calls:
                raise invalid(
                    "A message has tool_calls or a function_call, not both.",
                    f"messages[{index}].function_call",
                )
            call = CalledTool(function=message.function_call)
            message = replace(message, tool_calls=[call], function_call=None)
        if message.tool_calls:
            ids = [call.id or _call_id(called + n) for n, call in enumerate(message.tool_calls, 1)]
            called += len(ids)
            waiting = deque(ids)
            calls = [replace(call, id=i) for call, i in zip(message.tool_calls, ids, strict=True)]
            message = replace(message, tool_calls=calls)
        if message.role == "function" or (message.role == "tool" and not message.tool_call_id):
            call_id = waiting.popleft() if waiting else _call_id(called)
            message = replace(message, role="tool", tool_call_id=call_id)
        elif (named := message.tool_call_id) and named in waiting:
            waiting.remove(named)
        result.append(_with_refusal(message))
    return result


def _is_older(message: ChatMessage) -> bool:
    return (
        message.function_call is not None
        or message.role == "function"
        or (message.role == "tool" and not message.tool_call_id)
        or any(not call.id for call in message.tool_calls or ())
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
