"""The requests and answers of the Responses API."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quire.server.notices import Warnings
from quire.server.openai import elsewhere
from quire.server.openai.answers import TokenLogprob
from quire.server.openai.protocol import Effort, TextRequest
from quire.server.responses.item_types import Item, ItemStatus, ReasoningText
from quire.server.responses.tool_types import Tool, ToolChoice
from quire.server.rules import Messages, Rules, Strict, Tools, each, ignored, instead, refused

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that asks for the log-probabilities of texts."""
ENCRYPTED = "reasoning.encrypted_content"
"""The value of `include` that asks for reasoning as opaque text; see `server.opaque`."""


class TextFormat(Strict):
    """The text's format. A schema is always enforced, `strict` or not."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(Strict):
    format: TextFormat | None = None

    rules: ClassVar[Rules] = {
        "verbosity": ignored("The model does not see this; ask for the length in a message.")
    }


class ReasoningConfig(Strict):
    """`effort` goes to the chat template, which must support it; `none` turns reasoning off."""

    effort: Effort | None = None

    rules: ClassVar[Rules] = {
        **each(
            "summary generate_summary",
            ignored("Reasoning is not summarized; all of it is in the content of its item."),
        ),
        "context": ignored("The chat template chooses which reasoning the model sees again."),
        "mode": ignored("The server has one reasoning mode.", strict=("standard",)),
    }


class ResponsesRequest(TextRequest, kw_only=True):
    """POST /v1/responses."""

    input: str | Messages[dict[str, Any]]
    """A user's message, or items."""
    instructions: str | None = None
    """The system message; `previous_response_id` does not carry it over."""
    previous_response_id: str | None = None
    """A stored response whose conversation continues."""
    store: bool | None = None
    """Store the response; true by default."""
    background: bool | None = None
    """Return at once, and generate in the background; the response must be stored."""
    tools: Tools[dict[str, Any]] | None = None
    """Functions and custom tools; see `responses.tool_types`. Other types are ignored."""
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    max_output_tokens: int | None = None
    include: Messages[str] | None = None
    """`message.output_text.logprobs` and `reasoning.encrypted_content`; others have no effect."""
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    """`auto` leaves out the oldest turns of a conversation that is too long."""
    metadata: (
        Annotated[
            dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
            Meta(max_length=16),
        ]
        | None
    ) = None

    # Labels of the caller; they have no effect, because every prefix is cached.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    chat_template_kwargs: dict[str, Any] | None = None
    """vLLM's: variables of the chat template."""

    rules: ClassVar[Rules] = {
        **elsewhere.SAMPLERS,
        **elsewhere.CHAT_SAMPLING,
        "client_metadata": ignored("The server does not tell callers apart.", strict=None),
        "context_management": ignored("Conversations are not compacted; see truncation."),
        "conversation": refused("Send previous_response_id instead."),
        "max_tool_calls": ignored("The server itself calls no tools."),
        "max_tokens": refused("Send max_output_tokens instead."),
        "messages": refused("Send input instead."),
        "thinking": instead("reasoning.effort, or chat_template_kwargs"),
        "enable_response_messages": refused("Messages are not reported.", False),
        **each(
            "previous_input_messages previous_response",
            refused("Send the items as input, or previous_response_id."),
        ),
        "vllm_xargs": refused("The server has no plug-ins."),
        "moderation": refused("The server moderates nothing."),
        "prompt": refused("Prompts are not stored; send instructions and input."),
        **each(
            "prompt_cache_options prompt_cache_retention",
            ignored("Every prefix is cached, for as long as there is memory."),
        ),
        "service_tier": ignored("There is one tier of service.", strict=("auto", "default")),
    }


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[TokenLogprob] = []


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    content: list[OutputText] = []
    role: str = "assistant"
    status: ItemStatus = "in_progress"


class OutputReasoning(msgspec.Struct, tag_field="type", tag="reasoning"):
    id: str
    content: list[ReasoningText] = []
    summary: list[dict[str, Any]] = []
    encrypted_content: str | UnsetType = UNSET
    """The content as opaque text, if `include` asks for it."""
    status: ItemStatus = "in_progress"


class _Call(msgspec.Struct):
    id: str
    call_id: str
    name: str
    status: ItemStatus = "in_progress"
    namespace: str | UnsetType = UNSET


class OutputCall(_Call, tag_field="type", tag="function_call"):
    arguments: str = ""


class OutputCustomCall(_Call, tag_field="type", tag="custom_tool_call"):
    input: str = ""


OutputItem = OutputMessage | OutputReasoning | OutputCall | OutputCustomCall


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int
    cache_write_tokens: int = 0
    """Always 0, because OpenAI's client requires the field: writing to the cache has no price."""


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseFailure(msgspec.Struct):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    reason: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response: the request's settings, and the answer so far."""

    id: str
    created_at: int
    model: str
    status: Status
    output: list[OutputItem]
    object: str = "response"
    completed_at: int | None = None
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponseUsage | None = None
    instructions: str | None
    previous_response_id: str | None
    store: bool
    background: bool
    tools: list[Tool]
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    text: TextConfig
    reasoning: ReasoningConfig
    max_output_tokens: int | None
    temperature: float
    top_p: float
    top_logprobs: int
    truncation: str
    metadata: dict[str, str]
    service_tier: str = "default"
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    warnings: Warnings = UNSET


class InputTokens(msgspec.Struct):
    """POST /v1/responses/input_tokens."""

    input_tokens: int
    object: str = "response.input_tokens"
    warnings: Warnings = UNSET


class DeletedResponse(msgspec.Struct):
    id: str
    object: str = "response"
    deleted: bool = True


class ItemList(msgspec.Struct):
    """GET /v1/responses/{id}/input_items."""

    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"
    warnings: Warnings = UNSET


class IncludeQuery(Strict):
    """What OpenAI's clients ask to include; it has no effect. They write lists with brackets."""

    include: str | None = None
    include_list: str | None = msgspec.field(default=None, name="include[]")
    include_obfuscation: bool | None = None


class ItemsQuery(IncludeQuery):
    after: str | None = None
    """The id of the item before the page."""
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


class RetrieveQuery(IncludeQuery):
    stream: bool | None = None
    """Replay the events of a streamed background response."""
    starting_after: Annotated[int, Meta(ge=0)] | None = None
    """The number of the event before the first one to return."""
