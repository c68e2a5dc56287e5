"""Completions and chat completions as OpenAI's API has them, with vLLM's extra fields.

A field that would change the answer is implemented, or refused by name. One that changes nothing is
ignored and reported: the fields of a type are those that have an effect, and its `rules` are those
that exist elsewhere (see `server.rules`). What is in neither is unknown, and ignored too.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quire.server.notices import Warnings
from quire.server.openai import elsewhere
from quire.server.rules import Rules

MAX_SEQUENCES = 2048
"""Most completions of one request: its prompts times n."""
MAX_MESSAGES = 2048
"""Of a conversation; also its items, and the parts of one message."""
MAX_TOOLS = 1024
"""Of a request; also the calls of one message."""

T = TypeVar("T")
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Messages = Annotated[list[T], Meta(max_length=MAX_MESSAGES)]
Tools = Annotated[list[T], Meta(max_length=MAX_TOOLS)]


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """Base of everything a client sends."""

    rules: ClassVar[Rules] = {}
    """Fields without effect, in addition to those of the bases."""


class StreamOptions(Strict):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    """vLLM's: every chunk tells what was used so far, and not the last one alone."""

    rules: ClassVar[Rules] = elsewhere.STREAM_OPTIONS


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
    disable_additional_properties: bool = True

    rules: ClassVar[Rules] = elsewhere.STRUCTURED_OUTPUTS


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
    logprob_token_ids: list[int] | None = None
    """Report the log-probabilities of these tokens, too."""
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    """Beam search: see `core.beam_search`."""
    thinking_token_budget: int | None = None
    """Most tokens of reasoning, whose end is then forced."""
    priority: int | None = None
    cache_salt: str | None = None
    cache_prompt: bool | None = None
    """llama.cpp's: false computes the whole prompt, also if a prefix of it is known."""
    return_token_ids: bool | None = None
    """Return the token ids of prompt and answer, in addition to the text."""
    return_tokens_as_token_ids: bool | None = None
    """In log-probabilities tokens are `token_id:N`, which tells tokens of one text apart."""
    request_id: str | None = None
    """A name for the answer's id, if no `X-Request-Id` says it: letters, digits, `.`, `_`, `:` and
    `-`, up to 128."""

    # What the text has to be: one of these at most.
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None

    rules: ClassVar[Rules] = elsewhere.COMMON


class CompletionRequest(CommonRequest, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]] | None = None
    """One text or one list of token ids, or a list of either."""
    prompt_embeds: str | Annotated[list[str], Meta(max_length=MAX_SEQUENCES)] | None = None
    """vLLM's: embeddings in its place, the file of `torch.save` in base64; float [tokens, hidden].
    `prompt` may then be empty, as OpenAI's clients want it to be there."""
    echo: bool | None = None
    logprobs: int | bool | None = None
    """The most likely tokens to report at each position, in addition to the chosen one. False is
    none, and true one."""
    suffix: str | None = None
    """What comes behind the completion, for models that were trained to fill in text."""

    best_of: int | None = None
    """Completions to compute; the n with the highest cumulative log-probability are returned."""

    rules: ClassVar[Rules] = elsewhere.COMPLETION

    def __post_init__(self) -> None:
        if isinstance(self.logprobs, bool):  # as chats have it
            self.logprobs = 1 if self.logprobs else None


class TextPart(Strict, tag_field="type", tag="text"):
    """A part of a message's content; images and audio are not served."""

    text: str


class RefusalPart(Strict, tag_field="type", tag="refusal"):
    """What the assistant said in place of an answer."""

    refusal: str


class CalledFunction(Strict):
    name: str
    arguments: str | dict[str, Any] | None = None
    """The text of a JSON object, or the object; any other text is taken as it is."""


class CalledTool(Strict):
    """A call in an assistant's message, as a client echoes it."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"

    rules: ClassVar[Rules] = elsewhere.CALL


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    """`function` is the older form of `tool`."""
    content: str | Messages[TextPart | RefusalPart] | None = None
    name: str | None = None
    tool_calls: Tools[CalledTool] | None = None
    """The assistant's."""
    tool_call_id: str | None = None
    """Which call a tool's message answers."""
    reasoning: str | None = None
    reasoning_content: str | None = None
    """The same; templates may show it to the model."""

    refusal: str | None = None
    """The assistant's; it is text as any other."""
    function_call: CalledFunction | None = None
    """The older form of `tool_calls`."""

    rules: ClassVar[Rules] = elsewhere.MESSAGE


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


class NamedTool(Strict):
    type: Literal["function"]
    function: ChosenFunction


class AllowedTools(Strict):
    mode: Literal["auto", "required"]
    tools: Tools[NamedTool]


class ChosenTool(Strict):
    """`tool_choice`: call this function, or only the allowed ones."""

    type: Literal["function", "allowed_tools"]
    function: ChosenFunction | None = None
    allowed_tools: AllowedTools | None = None


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

    tools: Tools[ToolDefinition] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    """Whether an answer may have several calls; all but the first are left out otherwise."""
    include_reasoning: bool | None = None
    reasoning_effort: Effort | None = None
    """Goes to the chat template, which has to know it."""
    functions: Tools[FunctionDefinition] | None = None
    function_call: Literal["none", "auto"] | ChosenFunction | None = None
    """The older forms of `tools` and `tool_choice`; see `openai.forms`."""
    documents: Tools[dict[str, Any]] | None = None
    """For a chat template that reads them."""
    add_special_tokens: bool | None = None
    """Add those that the model wants around a text to what the template writes."""
    echo: bool | None = None
    """Begin the answer with the last message, if the assistant continues it."""
    chat_template: str | None = None
    """Jinja source in place of the model's; needs --trust-request-chat-template."""

    rules: ClassVar[Rules] = elsewhere.CHAT


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    """Tokens of the whole request; each prompt counts once, however large n is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


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
    prompt_logprobs: PromptLogprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionResponse(msgspec.Struct):
    """A whole completion, or (streaming) one piece of it; the field names are the same."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: str = "text_completion"
    system_fingerprint: str | None = None
    usage: Usage | UnsetType | None = UNSET
    warnings: Warnings = UNSET


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
    function_call: FunctionCall | UnsetType = UNSET
    """Where the request has `functions`."""
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class ChatResponse(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"
    system_fingerprint: str | None = None
    warnings: Warnings = UNSET
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class Delta(msgspec.Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET
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
    system_fingerprint: str | None = None
    usage: Usage | UnsetType | None = UNSET
    warnings: Warnings = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
