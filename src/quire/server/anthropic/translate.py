"""Translate a request of the Messages API to a chat request."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from quire.server.anthropic.protocol import CountRequest, JsonFormat, MessagesRequest, ThinkingParam
from quire.server.anthropic.tools import GivenTools, read_choice
from quire.server.anthropic.turns import Turn, chat_messages, is_begun
from quire.server.errors import invalid
from quire.server.notices import ignore
from quire.server.openai.protocol import ChatRequest, JsonSchema, ResponseFormat
from quire.server.openai.reasoning import chat_template_of
from quire.server.state import server_state


def as_chat(
    request: Request, body: CountRequest, turns: list[Turn], given: GivenTools
) -> ChatRequest:
    """Return the same request of the chat API.

    Raises:
        ApiError: 400 for fields that contradict each other.
    """
    chat = ChatRequest(messages=chat_messages(turns), model=body.model)
    chat.tools = given.definitions or None
    chat.tool_choice = read_choice(body.tool_choice, given)
    if body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use:
        chat.parallel_tool_calls = False
    if turns and is_begun(turns):
        chat.continue_final_message = True
    if body.thinking is not None:
        chat.chat_template_kwargs = _thinking(request, body.thinking)
        if body.thinking.type == "enabled" and server_state(request).parsers.reasoning is not None:
            chat.thinking_token_budget = body.thinking.budget_tokens
    if (wanted := _format(body)) is not None:
        schema = JsonSchema(wanted.name or "answer", wanted.schema)
        chat.response_format = ResponseFormat("json_schema", schema)
    _set_effort(request, body, chat)
    if isinstance(body, MessagesRequest):
        chat.max_tokens = body.max_tokens
        chat.stop = body.stop_sequences
        chat.stream = body.stream
        chat.temperature, chat.top_p, chat.top_k = body.temperature, body.top_p, body.top_k
    return chat


def _format(body: CountRequest) -> JsonFormat | None:
    newer = body.output_config.format if body.output_config is not None else None
    if newer is not None and body.output_format is not None:
        raise invalid("Send output_config.format alone, without output_format.", "output_format")
    return newer or body.output_format


def _thinking(request: Request, wanted: ThinkingParam) -> dict[str, Any]:
    """Return the chat template's variables; notices report settings without effect."""
    server = server_state(request)
    reasons = server.parsers.reasoning is not None
    knows = "enable_thinking" in chat_template_of(server)
    enabled = wanted.type != "disabled"
    if enabled and not (reasons or knows):
        ignore(request, "thinking", "This model does not think before it answers.")
    elif not enabled and reasons and not knows:
        ignore(request, "thinking", "This model always thinks; its chat template has no switch.")
    elif wanted.budget_tokens is not None and not (enabled and reasons):
        ignore(request, "thinking.budget_tokens", "The answer has no reasoning to limit.")
    if wanted.display == "updates":
        ignore(request, "thinking.display", "Thinking is returned as the model writes it.")
    return {"enable_thinking": enabled}


def _set_effort(request: Request, body: CountRequest, chat: ChatRequest) -> None:
    effort = body.output_config.effort if body.output_config is not None else None
    if effort is None:
        return
    if "reasoning_effort" not in chat_template_of(server_state(request)):
        message = "The chat template has no setting for it."
        ignore(request, "output_config.effort", message)
        return
    chat.reasoning_effort = "xhigh" if effort == "max" else effort
