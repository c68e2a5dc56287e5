"""Requests of OpenAI's completions and chat completions, with vLLM's extra fields.

A field that would change the answer is implemented or refused by name. A field without effect is
ignored and reported. A type's fields are those with an effect; its `rules` are fields of other
servers (see `server.rules`). Fields in neither are unknown, and ignored, too.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from quire.core.sampling_params import RepetitionDetectionParams
from quire.server.openai import elsewhere
from quire.server.openai.tool_types import ChatTool, ChosenFunction, ChosenTool, FunctionDefinition
from quire.server.rules import MAX_SEQUENCES, Messages, Rules, Strict, Tools, each, ignored, refused

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class KVTransferParams(msgspec.Struct):
    """A request's part in a hand-off. Blocks are found by their content, so the other fields of a
    producer's answer need not be right, and unknown ones have no effect."""

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    remote_block_ids: list[Any] | None = None


class StreamOptions(Strict):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    """vLLM's: each chunk reports the usage so far, not only the last chunk."""

    rules: ClassVar[Rules] = {
        "include_obfuscation": ignored("Nothing is added to events.", strict=(False,))
    }


class JsonSchema(Strict):
    """A schema; the answer always follows it, `strict` or not. Its name has no effect."""

    schema: dict[str, Any] | bool
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | bool | None = None
    """llama.cpp's place of `json_schema.schema`."""
    value: dict[str, Any] | bool | None = None
    """The same, as Hugging Face's client sends it."""

    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None
    """vLLM's structural tags, in the older and the newer form; see `text.tag_formats`."""

    rules: ClassVar[Rules] = each("grammar pattern", refused("Send structured_outputs instead."))

    def __post_init__(self) -> None:
        if self.schema is None:
            self.schema, self.value = self.value, None


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

    rules: ClassVar[Rules] = {"disable_fallback": ignored("There is one backend.", strict=None)}


class TextRequest(Strict):
    """Fields of every request for text, in all of OpenAI's APIs."""

    model: str | None = None
    """The served model's name; optional, as in vLLM."""
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[int, float] | None = None
    """Token id in decimal (JSON keys are strings) → bias."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # vLLM's extra fields, which OpenAI's clients send in `extra_body`.
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
    priority: int | None = None
    cache_salt: str | None = None
    structured_outputs: StructuredOutputs | None = None


class CommonRequest(TextRequest):
    """Fields of both completions and chat completions."""

    max_tokens: int | None = None
    n: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    """Also report the log-probabilities of these tokens."""
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    """Beam search: see `core.beam_search`."""
    repetition_detection: RepetitionDetectionParams | None = None
    thinking_token_budget: int | None = None
    """Most tokens of reasoning; then its end is forced."""
    cache_prompt: bool | None = None
    """llama.cpp's: false computes the whole prompt, even if a prefix is cached."""
    kv_transfer_params: KVTransferParams | None = None
    """vLLM's: computes a prompt for another server, or an answer after another server's prompt."""
    return_token_ids: bool | None = None
    """Return the token ids of prompt and answer, in addition to the text."""
    return_tokens_as_token_ids: bool | None = None
    """Write tokens in log-probabilities as `token_id:N`: two tokens may have the same text."""
    request_id: str | None = None
    """Part of the answer's id, if there is no `X-Request-Id`: up to 128 letters, digits, `.`, `_`,
    `:` and `-`."""

    # The text's structure: at most one of these and `structured_outputs`.
    response_format: ResponseFormat | None = None
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
    add_special_tokens: bool | None = None
    """Add the model's special tokens to texts; true by default."""
    prompt_embeds: str | Annotated[list[str], Meta(max_length=MAX_SEQUENCES)] | None = None
    """vLLM's: embeddings instead of `prompt`, float [tokens, hidden]; a file of `torch.save` in
    base64. `prompt` may be empty then; OpenAI's clients always send it."""
    echo: bool | None = None
    logprobs: int | bool | None = None
    """Number of most likely tokens to report at each position, in addition to the chosen one. False
    means none, true means one."""
    suffix: str | None = None
    """Text after the completion, for models that were trained to fill in text."""

    best_of: int | None = None
    """Completions to compute; the n with the highest cumulative log-probability are returned."""

    rules: ClassVar[Rules] = elsewhere.COMPLETION

    def __post_init__(self) -> None:
        if isinstance(self.logprobs, bool):  # as in chats
            self.logprobs = 1 if self.logprobs else None


class TextPart(Strict, tag_field="type", tag="text"):
    """A part of a message's content; audio is not served."""

    text: str

    rules: ClassVar[Rules] = elsewhere.CACHED


class ImageAddress(Strict):
    url: str
    """A data URL; or http, https or file, where the server allows it."""

    rules: ClassVar[Rules] = {"detail": ignored("The model's image processor decides the size.")}


class ImagePart(Strict, tag_field="type", tag="image_url"):
    """An image, for a model that reads images."""

    image_url: ImageAddress

    rules: ClassVar[Rules] = {"uuid": ignored("The digest of an image is its key.")}


class ImageEmbedsPart(Strict, tag_field="type", tag="image_embeds"):
    """An image as the rows that the tower would compute; see docs/images.md."""

    image_embeds: str | dict[str, Any]

    rules: ClassVar[Rules] = ImagePart.rules


class RefusalPart(Strict, tag_field="type", tag="refusal"):
    """The assistant's refusal to answer."""

    refusal: str


Part = TextPart | RefusalPart | ImagePart | ImageEmbedsPart


class CalledFunction(Strict):
    name: str
    arguments: str | dict[str, Any] | None = None
    """A JSON object or its text; other text is accepted unchanged."""


class CalledTool(Strict, kw_only=True):
    """A call in an assistant's message, sent back by a client."""

    id: str | None = None
    """Without ids, results belong to calls in their order."""
    function: CalledFunction
    type: Literal["function"] = "function"

    rules: ClassVar[Rules] = {"index": ignored("The chat template does not get it.")}


ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""The roles of messages; `function` is the older form of `tool`."""


class ChatMessage(Strict):
    role: str
    """One of `ROLES`, or one that the chat template names."""
    content: str | Messages[Part] | None = None
    name: str | None = None
    tool_calls: Tools[CalledTool] | None = None
    """The assistant's."""
    tool_call_id: str | None = None
    """The call that a tool's message answers."""
    reasoning: str | None = None
    reasoning_content: str | None = None
    """The same; templates may show it to the model."""

    refusal: str | None = None
    """The assistant's; treated as text."""
    function_call: CalledFunction | None = None
    """The older form of `tool_calls`."""

    rules: ClassVar[Rules] = elsewhere.MESSAGE


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

    tools: Tools[ChatTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    """Whether an answer may have several calls; if false, only the first is returned."""
    include_reasoning: bool | None = None
    reasoning_effort: Effort | None = None
    """Passed to the chat template, which must support it."""
    return_prompt_text: bool | None = None
    """Return the text that the chat template made of the messages."""
    functions: Tools[FunctionDefinition] | None = None
    function_call: Literal["none", "auto"] | ChosenFunction | None = None
    """The older forms of `tools` and `tool_choice`; see `openai.conversation`."""
    documents: Tools[dict[str, Any]] | None = None
    """For chat templates that use them."""
    add_special_tokens: bool | None = None
    """Add the model's special tokens to those that the template writes."""
    echo: bool | None = None
    """Begin the answer with the last message, if the assistant continues it."""
    chat_template: str | None = None
    """Jinja source that replaces the model's template; needs --trust-request-chat-template."""

    rules: ClassVar[Rules] = elsewhere.CHAT
