"""The requests and responses of Anthropic's Messages API.

As in OpenAI's: fields that change the answer are implemented or refused by name. Other fields are
ignored and reported. Some fields are declared here only to avoid a notice: every client sends them,
and they ask for what happens anyway.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from quire.server.anthropic import elsewhere
from quire.server.anthropic.context import AppliedEdit, ContextManagement
from quire.server.notices import Warnings
from quire.server.rules import Messages, Rules, Strict, Tools, ignored, refused

Block = Annotated[dict[str, Any], msgspec.Meta(description="A content block; see `blocks`.")]


class TextParam(Strict, tag_field="type", tag="text"):
    """A block of the system prompt."""

    text: str
    cache_control: Any = None
    citations: Any = None


class MessageParam(Strict):
    role: Literal["user", "assistant", "system"]
    content: str | Messages[Block] | None = None
    clear_at: Literal["never", "next_user_message"] | None = None
    """When a system message is removed from the prompt."""

    rules: ClassVar[Rules] = {
        "output_config": ignored("It has an effect only at the top level of the body.")
    }


class ToolChoiceParam(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingParam(Strict):
    """Goes to the chat template as its switch of reasoning."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted", "updates"] | None = None
    """`omitted`: the text is only in the block's signature. Thinking is never summarized."""

    rules: ClassVar[Rules] = {"block_binding": ignored("Signatures of thinking are not checked.")}


class JsonFormat(Strict):
    type: Literal["json_schema"]
    schema: dict[str, Any] | bool
    name: str | None = None


class OutputConfig(Strict):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None

    rules: ClassVar[Rules] = {"task_budget": ignored("The model does not see a budget.")}


class CountRequest(Strict, kw_only=True):
    """POST /v1/messages/count_tokens: the fields that form the prompt."""

    model: str
    messages: Messages[MessageParam]
    system: str | Messages[TextParam] | None = None
    tools: Tools[dict[str, Any]] | None = None
    """See `anthropic.tools`."""
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingParam | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """vLLM's: variables of the chat template."""
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    """The older place of `output_config.format`."""
    context_management: ContextManagement | None = None
    cache_control: Any = None
    """No effect: every prefix is cached."""
    thread: dict[str, Any] | None = None
    """Refused with a code on which clients send the whole conversation; see `messages`."""

    rules: ClassVar[Rules] = elsewhere.COUNT


class MessagesRequest(CountRequest, kw_only=True):
    """POST /v1/messages."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = None
    """Labels of the caller; ignored."""
    service_tier: Literal["auto", "standard_only"] | None = None

    rules: ClassVar[Rules] = {"max_tokens_to_sample": refused("Send max_tokens instead.")}


class CacheCreation(msgspec.Struct):
    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    thinking_tokens: int


class MessageUsage(msgspec.Struct):
    """Token counts. `input_tokens` were computed; cached ones are counted separately."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0
    output_tokens_details: OutputTokensDetails | UnsetType = UNSET
    cache_creation: CacheCreation = msgspec.field(default_factory=CacheCreation)
    server_tool_use: None = None
    service_tier: str = "standard"


class AppliedEdits(msgspec.Struct):
    """The edits of `context_management` that changed the prompt."""

    applied_edits: list[AppliedEdit]


class Message(msgspec.Struct):
    id: str
    model: str
    content: list[dict[str, Any]]
    usage: MessageUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    type: str = "message"
    role: str = "assistant"
    context_management: AppliedEdits | UnsetType = UNSET
    warnings: Warnings = UNSET


class UneditedCount(msgspec.Struct):
    """The number of tokens before `context_management`."""

    original_input_tokens: int


class TokenCount(msgspec.Struct):
    input_tokens: int
    context_management: UneditedCount | UnsetType = UNSET
    warnings: Warnings = UNSET
