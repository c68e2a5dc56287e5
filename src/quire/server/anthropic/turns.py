"""A conversation as turns of blocks, and as chat messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import field
from typing import Literal

from starlette.requests import Request

from quire.server.anthropic.blocks import (
    ImageBlock,
    Known,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    read_block,
    result_text,
)
from quire.server.anthropic.protocol import CountRequest, MessageParam
from quire.server.errors import invalid
from quire.server.http.json_text import encode
from quire.server.openai.protocol import (
    CalledFunction,
    CalledTool,
    ChatMessage,
    ImageAddress,
    ImagePart,
    Part,
    TextPart,
)
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
    parts: list[Part] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolUseBlock] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)


async def read_turns(request: Request, body: CountRequest) -> list[Turn]:
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


def chat_messages(turns: Sequence[Turn]) -> list[ChatMessage]:
    """Return the turns as chat messages. Each tool result becomes a message."""
    messages: list[ChatMessage] = []
    for turn in turns:
        messages += [
            ChatMessage("tool", text, tool_call_id=call_id)
            for call_id, text in turn.results.items()
        ]
        images = any(isinstance(part, ImagePart) for part in turn.parts)
        if not turn.texts and not images and (turn.results or turn.role == "system"):
            continue
        messages.append(
            ChatMessage(
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


def _add(request: Request, turn: Turn, message: MessageParam, where: str) -> None:
    if isinstance(message.content, str):
        turn.texts.append(message.content)
        turn.parts.append(TextPart(message.content))
        return
    for index, value in enumerate(message.content or ()):
        place = f"{where}[{index}]"
        block = read_block(request, value, place)
        if block is None:
            continue
        _check(block, turn.role, place)
        match block:
            case TextBlock():
                turn.texts.append(block.text)
                turn.parts.append(TextPart(block.text))
            case ImageBlock():
                turn.parts.append(ImagePart(ImageAddress(block.address)))
            case ThinkingBlock():
                turn.thoughts.append(block.thinking)
            case ToolUseBlock():
                turn.calls.append(block)
            case ToolResultBlock():
                found = result_text(request, block, place)
                turn.results[block.tool_use_id] = f"Error: {found}" if block.is_error else found


def _check(block: Known, role: Role, where: str) -> None:
    """Check that a block fits its role.

    Raises:
        ApiError: 400 if it does not.
    """
    if isinstance(block, ToolResultBlock) and role != "user":
        raise invalid("Tool results belong in messages of the role user.", where)
    if isinstance(block, ImageBlock) and role != "user":
        raise invalid("Images belong in messages of the role user.", where)
    if isinstance(block, ThinkingBlock | ToolUseBlock) and role != "assistant":
        raise invalid("Thinking and tool calls belong in messages of the role assistant.", where)


def _call(block: ToolUseBlock) -> CalledTool:
    given = block.input
    written = given if isinstance(given, str) else encode({} if given is None else given).decode()
    return CalledTool(block.id, CalledFunction(block.name, written))
