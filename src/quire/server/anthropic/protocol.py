"""The requests and responses of Anthropic's Messages API. As OpenAI's: implemented or refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quire.server.openai.protocol import Messages, Strict, Tools


class CacheControl(Strict):
    """Changes nothing: every prefix is cached."""

    type: Literal["ephemeral"]
    ttl: str | None = None


class Block(Strict, tag_field="type", kw_only=True):
    """A part of a message's content."""

    cache_control: CacheControl | None = None


class TextBlock(Block, tag="text"):
    text: str
    citations: None = None


class ThinkingBlock(Block, tag="thinking"):
    """Reasoning of an earlier answer, as a client sends it back."""

    thinking: str
    signature: str | None = None


class ToolUseBlock(Block, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(Block, tag="tool_result"):
    tool_use_id: str
    content: str | Messages[TextBlock] | None = None
    is_error: bool | None = None


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock


class MessageParam(Strict):
    role: Literal["user", "assistant"]
    content: str | Messages[ContentBlock]


class ToolParam(Strict):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    cache_control: CacheControl | None = None


class ToolChoiceParam(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingParam(Strict):
    """Passed to the chat template as `enable_thinking`, where it knows that.

    A budget is refused of a model that reasons: nothing would hold it to that.
    """

    type: Literal["enabled", "disabled"]
    budget_tokens: int | None = None


class Metadata(Strict):
    """An identifier of the caller's; it changes nothing."""

    user_id: str | None = None


class CountRequest(Strict, kw_only=True):
    """POST /v1/messages/count_tokens: what of a request makes its prompt."""

    model: str
    messages: Messages[MessageParam]
    system: str | Messages[TextBlock] | None = None
    tools: Tools[ToolParam] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingParam | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """POST /v1/messages."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    # Refused unless they say what would happen without them.
    container: None = None
    mcp_servers: None = None
    context_management: None = None


class MessageUsage(msgspec.Struct):
    """`input_tokens` are those that were computed; the cached ones are counted apart."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class Message(msgspec.Struct):
    id: str
    model: str
    content: list[dict[str, Any]]
    usage: MessageUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    type: str = "message"
    role: str = "assistant"


class TokenCount(msgspec.Struct):
    input_tokens: int


class AnthropicError(msgspec.Struct):
    type: str
    message: str


class AnthropicErrorBody(msgspec.Struct):
    """The body of every answer that is not a success."""

    error: AnthropicError
    type: str = "error"
