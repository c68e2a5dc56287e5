"""Completions and chat completions as OpenAI's API has them, with vLLM's extra fields.

A field is implemented or refused, never ignored. Requests forbid unknown fields; a field that
exists elsewhere but not here (yet) has the type None, so that clients which always send it as
null are served and any other value is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

MAX_SEQUENCES = 2048
"""Most completions of one request: its prompts times n."""
MAX_MESSAGES = 2048
"""Of a conversation; also its items, and the parts of one message."""
MAX_TOOLS = 1024
"""Of a request; also the calls of one message."""

T = TypeVar("T")
Messages = Annotated[list[T], Meta(max_length=MAX_MESSAGES)]
Tools = Annotated[list[T], Meta(max_length=MAX_TOOLS)]


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """Base of everything a client sends."""


class StreamOptions(Strict):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    """vLLM's: every chunk tells what was used so far, and not the last one alone."""
    include_obfuscation: bool | None = None


class JsonSchema(Strict):
    """A schema under its name; it is held to in any case, whether or not it is `strict`."""

    name: str
    schema: dict[str, Any] | bool
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Strict):
    """vLLM's; see `core.structured_outputs`."""

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None

    # Refused unless they say what would happen without them.
    disable_fallback: bool | None = None
    disable_additional_properties: None = None


class CommonRequest(Strict):
    """What completions and chat completions share."""

    model: str | None = None
    """The served model's name; may be left out, as in vLLM."""
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[int, float] | None = None
    """JSON's keys are strings: token ids in decimal."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    """An identifier of the caller's; it changes nothing here."""

    # vLLM's extra fields, which its clients send through `extra_body`.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    """Tell the prompt's and the answer's token ids beside the text."""

    # What the text has to be: one of these at most.
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None

    # Refused unless they say what would happen without them.
    guided_decoding_backend: None = None
    logits_processors: None = None
    use_beam_search: None = None
    length_penalty: None = None
    truncate_prompt_tokens: None = None
    kv_transfer_params: None = None
    return_tokens_as_token_ids: None = None
    request_id: None = None
    vllm_xargs: None = None


class CompletionRequest(CommonRequest, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]] | None = None
    """One text or one list of token ids, or a list of either."""
    prompt_embeds: str | Annotated[list[str], Meta(max_length=MAX_SEQUENCES)] | None = None
    """vLLM's: embeddings in its place, the file of `torch.save` in base64; float [tokens, hidden].
    `prompt` may then be empty, as OpenAI's clients want it to be there."""
    echo: bool | None = None
    logprobs: int | None = None
    """The likeliest tokens to report at each position, beside the chosen one."""

    best_of: int | None = None
    suffix: None = None


class TextPart(Strict, tag_field="type", tag="text"):
    """A part of a message's content; images and audio are not served."""

    text: str


class CalledFunction(Strict):
    name: str
    arguments: str = "{}"
    """A JSON object."""


class CalledTool(Strict):
    """A call in an assistant's message, as a client echoes it."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | None = None


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Messages[TextPart] | None = None
    name: str | None = None
    tool_calls: Tools[CalledTool] | None = None
    """The assistant's."""
    tool_call_id: str | None = None
    """Which call a tool's message answers."""
    reasoning: str | None = None
    reasoning_content: str | None = None
    """The same; templates may show it to the model."""

    # A client that echoes an answer's message back sends these as null, or empty.
    refusal: None = None
    function_call: None = None
    audio: None = None
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None


class FunctionDefinition(Strict):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema; none is a function without parameters."""
    strict: bool | None = None
    """Hold the arguments to the schema; see `server.openai.tools`."""


class ToolDefinition(Strict):
    type: Literal["function"]
    function: FunctionDefinition


class ChosenFunction(Strict):
    name: str


class ChosenTool(Strict):
    """`tool_choice`: call this function."""

    type: Literal["function"]
    function: ChosenFunction


class ChatRequest(CommonRequest, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Messages[ChatMessage]
    max_completion_tokens: int | None = None
    """OpenAI's newer name of `max_tokens`."""
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    modalities: list[Literal["text"]] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: bool | None = None
    tools: Tools[ToolDefinition] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    """Whether an answer may have several calls; all but the first are left out otherwise."""
    include_reasoning: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    """Goes to the chat template, which has to know it."""
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    """As `user`, names of the caller's; every prefix is cached."""
    functions: None = None
    function_call: None = None
    chat_template: None = None
    documents: None = None
    audio: None = None
    prediction: None = None
    metadata: None = None
    verbosity: None = None
    web_search_options: None = None


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class Usage(msgspec.Struct):
    """Tokens of the whole request; each prompt counts once, however large n is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class PromptLogprob(msgspec.Struct):
    logprob: float
    rank: int | None
    decoded_token: str | None


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""vLLM's extension: for each prompt token, token id → log-probability; None for the first."""


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists, one entry a token.

    `text_offset` adds up the tokens' characters, from the start of the choice's text; it is exact
    where every token is whole characters of that text.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionResponse(msgspec.Struct):
    """A whole completion, or (streaming) one piece of it; the field names are the same."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: str = "text_completion"
    usage: Usage | UnsetType | None = UNSET


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None = None


class FunctionCall(msgspec.Struct):
    name: str | UnsetType
    arguments: str


class ToolCall(msgspec.Struct):
    """A call, or (streaming) a piece of one: `id` and the name come first, and once."""

    index: int | UnsetType
    function: FunctionCall
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class AssistantMessage(msgspec.Struct):
    content: str | None
    role: str = "assistant"
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatResponse(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Delta(msgspec.Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct):
    """One server-sent event of a streamed chat completion."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: str = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
