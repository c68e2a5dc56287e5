"""A request's `input` as items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from quire.server.errors import invalid
from quire.server.http.body import convert, read_part
from quire.server.notices import ignore
from quire.server.opaque import decode_reasoning
from quire.server.responses.foreign import FOREIGN_TYPES, translated
from quire.server.responses.item_types import Item, ReasoningItem, ReasoningText, Reference
from quire.server.responses.items import completed
from quire.server.tool_results import without_media

FindItem = Callable[[str, str], Item]
"""Returns the stored item of an id that a field of the request names, or raises `ApiError`."""
_REFERENCE = "item_reference"
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


def read_input(request: Request, given: str | list[dict[str, Any]], find: FindItem) -> list[Item]:
    """Return `input` as items, all of which have an id.

    Raises:
        ApiError: 400 with the wrong item and field; 404 for a reference to an unknown item.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [
        item
        for index, raw in enumerate(given)
        for item in _read(request, raw, f"input[{index}]", find)
    ]


def _read(request: Request, raw: dict[str, Any], where: str, find: FindItem) -> list[Item]:
    kind = raw.get("type")
    if kind is None:
        kind = _REFERENCE if raw.keys() <= {"id", "type"} else "message"
    if kind == _REFERENCE:
        reference: Reference = read_part(request, raw, Reference, where)
        return [find(reference.id, f"{where}.id")]
    if isinstance(kind, str) and kind in FOREIGN_TYPES:
        try:
            found = translated(raw)
        except RecursionError:
            raise invalid(f"{where} is nested too deeply.", where) from None
        if not found:
            ignore(request, where, f"A {kind} has no text that the model could read.")
        return [completed(convert(one, Item, where)) for one in found]
    if kind in _OUTPUTS:
        without_media(request, raw.get("output"), "input_text", f"{where}.output")
    item: Item = read_part(request, {**raw, "type": kind}, Item, where)
    if isinstance(item, ReasoningItem) and not item.content:
        _decode(request, item, where)
    return [completed(item)]


def _decode(request: Request, item: ReasoningItem, where: str) -> None:
    """Set the content from the encoded text."""
    if item.encrypted_content:
        text = decode_reasoning(item.encrypted_content)
        if text is not None:
            item.content = [ReasoningText(text)]
        else:
            ignore(
                request,
                f"{where}.encrypted_content",
                "Another server wrote it; the model does not see that reasoning.",
            )
    elif item.summary:
        ignore(request, f"{where}.summary", "The model does not see summaries of reasoning.")
