"""The requests and answers of the Responses API. As in the others: implemented or refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quire.server.openai.protocol import Messages, StreamOptions, Strict, TokenLogprob, Tools

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputText(Strict, tag_field="type", tag="input_text"):
    """A part of a message's content; images, files and audio are not served."""

    text: str
    prompt_cache_breakpoint: None = None


class AnswerText(Strict, tag_field="type", tag="output_text"):
    """The same, in an answer that a client sends back."""

    text: str
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None
    logprobs: list[Any] | None = None


class MessageItem(Strict, tag_field="type", tag="message", kw_only=True):
    """What somebody said. The only item whose `type` may be left out."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | Messages[InputText | AnswerText]
    id: str | None = None
    status: ItemStatus | None = None
    phase: None = None


class FunctionCallItem(Strict, tag_field="type", tag="function_call", kw_only=True):
    """A call of an earlier answer."""

    call_id: str
    name: str
    arguments: str
    """The text of a JSON object."""
    id: str | None = None
    status: ItemStatus | None = None
    namespace: None = None
    caller: None = None


class FunctionCallOutputItem(Strict, tag_field="type", tag="function_call_output", kw_only=True):
    """What the call gave."""

    call_id: str
    output: str | Messages[InputText]
    id: str | None = None
    status: ItemStatus | None = None
    name: None = None
    namespace: None = None
    caller: None = None


class ReasoningText(Strict, tag_field="type", tag="reasoning_text"):
    text: str


class ReasoningItem(Strict, tag_field="type", tag="reasoning", kw_only=True):
    """Reasoning of an earlier answer; templates may show it to the model."""

    id: str | None = None
    content: Messages[ReasoningText] | None = None
    summary: Annotated[list[Any], Meta(max_length=0)] | None = None
    status: ItemStatus | None = None
    encrypted_content: None = None


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem


class FunctionTool(Strict, kw_only=True):
    """A function that the model may call."""

    type: Literal["function"]
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema; none is a function without parameters."""
    strict: bool | None = None
    allowed_callers: None = None
    defer_loading: None = None
    output_schema: None = None


class NamedFunction(Strict):
    """`tool_choice`: call this function."""

    type: Literal["function"]
    name: str


class TextFormat(Strict):
    """What the text has to be; a schema is held to in any case, whether or not it is `strict`."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(Strict):
    format: TextFormat | None = None
    verbosity: None = None


class ReasoningConfig(Strict):
    """`effort` goes to the chat template, which has to know it; none is no reasoning at all."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: None = None
    generate_summary: None = None


class ResponsesRequest(Strict, kw_only=True):
    """POST /v1/responses."""

    input: str | Messages[dict[str, Any]]
    """A user's message, or items."""
    model: str | None = None
    """The served model's name; may be left out."""
    instructions: str | None = None
    """The system's message; not carried over by `previous_response_id`."""
    previous_response_id: str | None = None
    """A stored response, whose conversation goes on."""
    store: bool | None = None
    """Keep the response, which is so by default."""
    background: bool | None = None
    """Answer at once, and go on behind; the response has to be stored."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: Tools[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
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
    service_tier: Literal["auto", "default"] | None = None

    # Names of the caller's; they change nothing here, where every prefix is cached.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    # vLLM's extra fields.
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    # Refused unless they say what would happen without them.
    context_management: None = None
    conversation: None = None
    max_tool_calls: None = None
    moderation: None = None
    prompt: None = None
    prompt_cache_options: None = None
    prompt_cache_retention: None = None


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
    status: ItemStatus = "in_progress"


class OutputCall(msgspec.Struct, tag_field="type", tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: ItemStatus = "in_progress"


OutputItem = OutputMessage | OutputReasoning | OutputCall


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """`reasoning_tokens`: of the reasoning's text, tokenized again."""

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
    """A response: what was asked, and what there is of the answer."""

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
    tools: list[FunctionTool]
    tool_choice: str | NamedFunction
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


class InputTokens(msgspec.Struct):
    """POST /v1/responses/input_tokens."""

    input_tokens: int
    object: str = "response.input_tokens"


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


class ItemsQuery(Strict):
    after: str | None = None
    """The id of the item behind which the page begins."""
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    include: None = None


class RetrieveQuery(Strict):
    stream: bool | None = None
    """Its events, of a response that is streamed in the background."""
    starting_after: Annotated[int, Meta(ge=0)] | None = None
    """The number of the event behind which to begin."""
    include: None = None
    include_obfuscation: None = None
