"""The input items of the Responses API; and an answer's items as input of the next turn."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from quire.server.http.body import convert
from quire.server.rules import Messages, Rules, Strict, each, ignored

ItemStatus = Literal["in_progress", "completed", "incomplete"]
_OF_THE_CALL = each(
    "caller async", ignored("The model sees the name, the input and the output of a call.")
)


class InputText(Strict, tag_field="type", tag="input_text"):
    """A text part of a message; files and audio are not supported."""

    text: str
    rules: ClassVar[Rules] = {"prompt_cache_breakpoint": ignored("Every prefix is cached.")}


class InputImage(Strict, tag_field="type", tag="input_image"):
    """An image of a message, for a model that reads images; files are not supported."""

    image_url: str
    """A data URL; or http, https or file, where the server allows it."""
    rules: ClassVar[Rules] = {"detail": ignored("The model's image processor decides the size.")}


class AnswerText(Strict, tag_field="type", tag="output_text"):
    """A text part of an answer that a client sends back."""

    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class RefusalText(Strict, tag_field="type", tag="refusal"):
    """A refusal of a model that a client sends back."""

    refusal: str


class MessageItem(Strict, tag_field="type", tag="message", kw_only=True):
    """A message. The only item whose `type` is optional."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | Messages[InputText | AnswerText | RefusalText | InputImage]
    id: str | None = None
    status: ItemStatus | None = None
    rules: ClassVar[Rules] = {"phase": ignored("Chat templates know no phases.")}


class _CallItem(Strict, kw_only=True):
    call_id: str
    name: str
    namespace: str | None = None
    id: str | None = None
    status: ItemStatus | None = None
    rules: ClassVar[Rules] = _OF_THE_CALL


class FunctionCallItem(_CallItem, tag_field="type", tag="function_call", kw_only=True):
    """A function call of an earlier answer."""

    arguments: str | None = None
    """The text of a JSON object; any other text is passed on as it is."""


class CustomCallItem(_CallItem, tag_field="type", tag="custom_tool_call", kw_only=True):
    """A call of a custom tool in an earlier answer."""

    input: str


class _OutputItem(Strict, kw_only=True):
    call_id: str | None = None
    output: str | Messages[InputText | InputImage]
    id: str | None = None
    name: str | None = None
    """The function's name; the model sees the call's."""
    namespace: str | None = None
    status: ItemStatus | None = None
    rules: ClassVar[Rules] = _OF_THE_CALL


class FunctionCallOutputItem(_OutputItem, tag_field="type", tag="function_call_output"):
    """The result of a function call."""


class CustomCallOutputItem(_OutputItem, tag_field="type", tag="custom_tool_call_output"):
    """The result of a custom tool's call."""


class ReasoningText(Strict, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(Strict, tag_field="type", tag="summary_text"):
    text: str


class ReasoningItem(Strict, tag_field="type", tag="reasoning", kw_only=True):
    """Reasoning of an earlier answer; templates may show it to the model."""

    id: str | None = None
    content: Messages[ReasoningText] | None = None
    encrypted_content: str | None = None
    """The same text, if `content` is not sent; see `server.opaque`."""
    summary: Messages[SummaryText] | None = None
    """Not shown to the model."""
    status: ItemStatus | None = None


Item = (
    MessageItem
    | FunctionCallItem
    | FunctionCallOutputItem
    | CustomCallItem
    | CustomCallOutputItem
    | ReasoningItem
)


class Reference(Strict, kw_only=True):
    """A reference to an item of a stored response."""

    type: Literal["item_reference"] | None = None
    id: Annotated[str, Meta(min_length=1)]


_PREFIXES: dict[type[Item], str] = {
    MessageItem: "msg",
    FunctionCallItem: "fc",
    FunctionCallOutputItem: "fco",
    CustomCallItem: "ctc",
    CustomCallOutputItem: "ctco",
    ReasoningItem: "rs",
}


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def completed(item: Item) -> Item:
    """Return an item with an id, and a message with a list of parts."""
    if item.id is None:
        item.id = new_id(_PREFIXES[type(item)])
    if isinstance(item, MessageItem) and isinstance(item.content, str):
        is_answer = item.role == "assistant"
        item.content = [AnswerText(item.content) if is_answer else InputText(item.content)]
    if isinstance(item, ReasoningItem):
        item.encrypted_content = None  # `content` has it
    return item


def as_input(output: Sequence[msgspec.Struct]) -> list[Item]:
    """Return an answer's items as input items, as a client would send them back."""
    built = msgspec.to_builtins(output, enc_hook=msgspec.json.decode)  # of `msgspec.Raw`
    return [completed(convert(item, Item, "output")) for item in built]
