"""A conversation as turns of blocks, and as a chat request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Literal

from starlette.requests import Request

from quire.server.anthropic import blocks, protocol
from quire.server.anthropic.tools import GivenTools, read_choice
from quire.server.errors import invalid
from quire.server.http.json_text import encode
from quire.server.notices import ignore
from quire.server.openai import protocol as openai
from quire.server.openai.reasoning import chat_template_of, thinking_switch
from quire.server.state import server_state
from quire.system.records import dataclass

BLOCKS_PER_TURN = 512
"""Blocks to read before yielding to the event loop: one or two milliseconds."""

Role = Literal["system", "user", "assistant"]


@dataclass(slots=True)
class Turn:
    """Consecutive messages of one role.

    Attributes:
        parts: texts and images, in their order.
        results: call id → the tool's result.
    """

    role: Role
    texts: list[str] = field(default_factory=list)
    parts: list[openai.Part] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[blocks.ToolUseBlock] = field(default_factory=list)
    results: dict[str, str | list[openai.Part]] = field(default_factory=dict)


def mend_roles(request: Request, body: Any) -> None:
    """Give messages of Claude Code's roles `ctx` and `msg` the role of the user, in place."""
    messages = body.get("messages") if isinstance(body, dict) else None
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict) and message.get("role") in ("ctx", "msg"):
            message["role"] = "user"


async def read_turns(request: Request, body: protocol.CountRequest) -> list[Turn]:
    """Return the conversation; consecutive messages of one role are one turn.

    Raises:
        ApiError: 400 for an invalid block, or one that its role cannot send.
    """
    turns: list[Turn] = []
    if body.system:
        texts = [body.system] if isinstance(body.system, str) else [b.text for b in body.system]
        turns.append(Turn("system", texts))
    num_read = 0
    last_user = max((i for i, m in enumerate(body.messages) if m.role == "user"), default=-1)
    for index, message in enumerate(body.messages):
        if message.clear_at == "next_user_message" and index < last_user:
            continue
        if not turns or turns[-1].role != message.role:
            turns.append(Turn(message.role))
        _add(request, turns[-1], message, f"messages[{index}].content")
        num_read += 1 if isinstance(message.content, str) else len(message.content or ())
        if num_read >= BLOCKS_PER_TURN:
            num_read = 0
            await asyncio.sleep(0)
    return turns


def chat_messages(turns: Sequence[Turn]) -> list[openai.ChatMessage]:
    """Return the turns as chat messages. Each tool result becomes a message."""
    messages: list[openai.ChatMessage] = []
    for turn in turns:
        messages += [
            openai.ChatMessage("tool", content, tool_call_id=call_id)
            for call_id, content in turn.results.items()
        ]
        images = any(isinstance(part, openai.ImagePart) for part in turn.parts)
        if not turn.texts and not images and (turn.results or turn.role == "system"):
            continue
        messages.append(
            openai.ChatMessage(
                turn.role,
                turn.parts if images else "\n".join(turn.texts),
                tool_calls=[_call(call) for call in turn.calls] or None,
                reasoning_content="".join(turn.thoughts) or None,
            )
        )
    return messages


def is_begun(turns: Sequence[Turn]) -> bool:
    """Return whether the answer continues the last turn."""
    last = turns[-1]
    return last.role == "assistant" and bool(last.texts) and not last.calls


def _add(request: Request, turn: Turn, message: protocol.MessageParam, where: str) -> None:
    if isinstance(message.content, str):
        turn.texts.append(message.content)
        turn.parts.append(openai.TextPart(message.content))
        return
    for index, value in enumerate(message.content or ()):
        place = f"{where}[{index}]"
        block = blocks.read_block(request, value, place)
        if block is None:
            continue
        _check(block, turn.role, place)
        match block:
            case blocks.TextBlock():
                turn.texts.append(block.text)
                turn.parts.append(openai.TextPart(block.text))
            case blocks.ImageBlock():
                turn.parts.append(openai.ImagePart(openai.ImageAddress(block.address)))
            case blocks.ThinkingBlock():
                turn.thoughts.append(block.thinking)
            case blocks.ToolUseBlock():
                turn.calls.append(block)
            case blocks.ToolResultBlock():
                turn.results[block.tool_use_id] = blocks.result_content(request, block, place)


def _check(block: blocks.Known, role: Role, where: str) -> None:
    """Check that a block fits its role.

    Raises:
        ApiError: 400 if it does not.
    """
    if isinstance(block, blocks.ToolResultBlock) and role != "user":
        raise invalid("Tool results belong in messages of the role user.", where)
    if isinstance(block, blocks.ThinkingBlock | blocks.ToolUseBlock) and role != "assistant":
        raise invalid("Thinking and tool calls belong in messages of the role assistant.", where)


def _call(block: blocks.ToolUseBlock) -> openai.CalledTool:
    given = block.input
    written = given if isinstance(given, str) else encode({} if given is None else given).decode()
    return openai.CalledTool(id=block.id, function=openai.CalledFunction(block.name, written))


def as_chat(
    request: Request, body: protocol.CountRequest, turns: list[Turn], given: GivenTools
) -> openai.ChatRequest:
    """Return the same request of the chat API.

    Raises:
        ApiError: 400 for fields that contradict each other.
    """
    chat = openai.ChatRequest(messages=chat_messages(turns), model=body.model)
    chat.tools = given.definitions or None
    chat.tool_choice = read_choice(body.tool_choice, given)
    if body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use:
        chat.parallel_tool_calls = False
    if turns and is_begun(turns):
        chat.continue_final_message = True
    chat.chat_template_kwargs = body.chat_template_kwargs
    if body.thinking is not None:
        kwargs = _thinking(request, body.thinking)
        chat.chat_template_kwargs = {**(body.chat_template_kwargs or {}), **kwargs}
        if body.thinking.type == "enabled" and server_state(request).parsers.reasoning is not None:
            chat.thinking_token_budget = body.thinking.budget_tokens
    if (wanted := _format(body)) is not None:
        schema = openai.JsonSchema(wanted.schema)
        chat.response_format = openai.ResponseFormat("json_schema", schema)
    _set_effort(request, body, chat)
    if isinstance(body, protocol.MessagesRequest):
        chat.max_tokens = body.max_tokens
        chat.stop = body.stop_sequences
        chat.stream = body.stream
        chat.temperature, chat.top_p, chat.top_k = body.temperature, body.top_p, body.top_k
    return chat


def _format(body: protocol.CountRequest) -> protocol.JsonFormat | None:
    newer = body.output_config.format if body.output_config is not None else None
    if newer is not None and body.output_format is not None:
        raise invalid("Send output_config.format alone, without output_format.", "output_format")
    return newer or body.output_format


def _thinking(request: Request, wanted: protocol.ThinkingParam) -> dict[str, Any]:
    """Return the chat template's variables; notices report settings without effect."""
    server = server_state(request)
    reasons = server.parsers.reasoning is not None
    switch = thinking_switch(chat_template_of(server))
    knows = switch is not None
    enabled = wanted.type != "disabled"
    if enabled and not (reasons or knows):
        ignore(request, "thinking", "This model does not think before it answers.")
    elif not enabled and reasons and not knows:
        ignore(request, "thinking", "This model always thinks; its chat template has no switch.")
    elif wanted.budget_tokens is not None and not (enabled and reasons):
        ignore(request, "thinking.budget_tokens", "The answer has no reasoning to limit.")
    if wanted.display == "updates":
        ignore(request, "thinking.display", "Thinking is returned as the model writes it.")
    return {switch or "enable_thinking": enabled}


def _set_effort(request: Request, body: protocol.CountRequest, chat: openai.ChatRequest) -> None:
    effort = body.output_config.effort if body.output_config is not None else None
    if effort is None:
        return
    if "reasoning_effort" not in chat_template_of(server_state(request)):
        message = "The chat template has no setting for it."
        ignore(request, "output_config.effort", message)
        return
    chat.reasoning_effort = "xhigh" if effort == "max" else effort
