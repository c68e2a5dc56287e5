"""A request of the Messages API as the chat that it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from quire.server.anthropic.protocol import (
    CountRequest,
    MessageParam,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from quire.server.errors import invalid
from quire.server.openai.protocol import (
    CalledFunction,
    CalledTool,
    ChatMessage,
    ChatRequest,
    ChosenFunction,
    ChosenTool,
    FunctionDefinition,
    ToolDefinition,
)

_CHOICES: dict[str, Literal["none", "auto", "required"]] = {
    "auto": "auto",
    "any": "required",
    "none": "none",
}


def as_chat(body: CountRequest) -> ChatRequest:
    """The same request of the chat API.

    Raises:
        ApiError: 400 for blocks or a tool_choice that contradict themselves.
    """
    messages = [ChatMessage("system", _text(body.system))] if body.system else []
    for index, message in enumerate(body.messages):
        messages += _messages(message, f"messages[{index}]")
    chat = ChatRequest(messages=messages, tool_choice=_tool_choice(body), model=body.model)
    if body.messages and body.messages[-1].role == "assistant" and not messages[-1].tool_calls:
        chat.continue_final_message = True  # the answer goes on where it ends
    if body.tools:
        chat.tools = [
            ToolDefinition("function", FunctionDefinition(t.name, t.description, t.input_schema))
            for t in body.tools
        ]
    if body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use:
        chat.parallel_tool_calls = False
    if body.thinking is not None:
        chat.chat_template_kwargs = {"enable_thinking": body.thinking.type == "enabled"}
    if isinstance(body, MessagesRequest):
        chat.max_tokens = body.max_tokens
        chat.stop = body.stop_sequences
        chat.stream = body.stream
        chat.temperature, chat.top_p, chat.top_k = body.temperature, body.top_p, body.top_k
    return chat


def _messages(message: MessageParam, where: str) -> list[ChatMessage]:
    """A message, and before it those of the tools whose results it holds."""
    if isinstance(message.content, str):
        return [ChatMessage(message.role, message.content)]
    results: list[ChatMessage] = []
    texts: list[TextBlock] = []
    calls: list[CalledTool] = []
    thoughts: list[str] = []
    for block in message.content:
        if isinstance(block, TextBlock):
            texts.append(block)
        elif isinstance(block, ToolResultBlock):
            if message.role != "user":
                raise invalid("Results of tools come in the user's messages.", f"{where}.content")
            content = _text(block.content or "")
            results.append(ChatMessage("tool", content, tool_call_id=block.tool_use_id))
        elif message.role != "assistant":
            raise invalid("Only the assistant thinks and calls tools.", f"{where}.content")
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        else:
            calls.append(_call(block))
    rest: list[ChatMessage] = []
    if texts or calls or not results:
        rest = [
            ChatMessage(
                message.role,
                _text(texts),
                tool_calls=calls or None,
                reasoning_content="".join(thoughts) or None,
            )
        ]
    return [*results, *rest]


def _call(block: ToolUseBlock) -> CalledTool:
    written = json.dumps(block.input, ensure_ascii=False)
    return CalledTool(block.id, CalledFunction(block.name, written))


def _text(content: str | Sequence[TextBlock] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block.text for block in content)


def _tool_choice(
    body: CountRequest,
) -> ChosenTool | Literal["none", "auto", "required"] | None:
    choice = body.tool_choice
    if choice is None:
        return None
    if (choice.name is not None) != (choice.type == "tool"):
        raise invalid("tool_choice has a name where its type is tool.", "tool_choice")
    if choice.name is not None:
        return ChosenTool("function", ChosenFunction(choice.name))
    return _CHOICES[choice.type]
