"""Items of a conversation: their ids, and an answer's items as input of the next turn."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from quire.server.http.body import convert
from quire.server.responses.item_types import (
    AnswerText,
    CustomCallItem,
    CustomCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputText,
    Item,
    MessageItem,
    ReasoningItem,
)
from quire.server.responses.protocol import OutputItem

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


def as_input(output: Sequence[OutputItem]) -> list[Item]:
    """Return an answer's items as input items, as a client would send them back."""
    built = msgspec.to_builtins(output, enc_hook=msgspec.json.decode)  # of `msgspec.Raw`
    return [completed(convert(item, Item, "output")) for item in built]
