"""A request's `input` as items.

Other services write items, too. Calls of tools that clients run become function calls, so that the
model sees them. Items without text for the prompt are left out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

from starlette.requests import Request

from quire.server.errors import invalid
from quire.server.http.body import convert, read_part
from quire.server.message_parts import plain_parts
from quire.server.notices import ignore
from quire.server.opaque import decode_reasoning
from quire.server.responses.item_types import (
    Item,
    ReasoningItem,
    ReasoningText,
    Reference,
    completed,
)
from quire.server.rules import MAX_MESSAGES
from quire.server.tool_results import without_media

ITEMS_PER_TURN = 64
MOST_ITEMS = 2 * MAX_MESSAGES
"""A message in the form of chats may have many calls."""
FindItem = Callable[[str, str], Item]
"""Returns the stored item of an id that a field of the request names, or raises `ApiError`."""
_REFERENCE = "item_reference"
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_OF_FUNCTIONS = ("function_call", "function_call_output")
"""Items with JSON, which may be an object instead of its text."""
_FOREIGN_CALLS = {
    "shell_call": "action",
    "local_shell_call": "action",
    "apply_patch_call": "operation",
}
"""Calls of tools that clients run, and the field with the call's input."""
_FOREIGN_OUTPUTS = {f"{name}_output" for name in _FOREIGN_CALLS}
_LEFT_OUT = {
    "additional_tools", "code_interpreter_call", "compaction", "compaction_trigger",
    "computer_call", "computer_call_output", "configuration_update", "file_search_call",
    "image_generation_call", "mcp_approval_request", "mcp_approval_response", "mcp_list_tools",
    "program", "program_output", "tool_search_call", "tool_search_output", "web_search_call",
}  # fmt: skip
_FOREIGN_TYPES = {*_FOREIGN_CALLS, *_FOREIGN_OUTPUTS, "mcp_call", *_LEFT_OUT}


async def read_input(
    request: Request, given: str | list[dict[str, Any]], find: FindItem
) -> list[Item]:
    """Return `input` as items, all of which have an id.

    Raises:
        ApiError: 400 with the wrong item and field; 404 for a reference to an unknown item.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    items: list[Item] = []
    places = ((raw, f"input[{index}]") for index, raw in enumerate(given))
    read = ((one, where) for raw, where in places for one in _of_chat(raw, where))
    for number, (one, where) in enumerate(read, 1):
        if number > MOST_ITEMS:
            raise invalid(f"input has more than {MOST_ITEMS} messages, calls and results.", "input")
        items += _read(request, one, where, find)
        if number % ITEMS_PER_TURN == 0:
            await asyncio.sleep(0)
    return items


def _of_chat(raw: dict[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """Yield the items of a message that calls tools or returns a result as in chats."""
    role, calls = raw.get("role"), raw.get("tool_calls")
    if raw.get("type", "message") == "message" and role == "tool":
        yield _output(raw.get("tool_call_id"), raw.get("content"))
    elif role != "assistant" or not isinstance(calls, list):
        yield raw
    else:
        if raw.get("content"):
            yield {name: value for name, value in raw.items() if name != "tool_calls"}
        for index, call in enumerate(calls):
            kind = "custom" if isinstance(call, dict) and "custom" in call else "function"
            if not isinstance(call, dict) or not isinstance(inner := call.get(kind), dict):
                field = f"{where}.tool_calls[{index}]"
                raise invalid(f"{field} needs an object `function` or `custom`.", field)
            item = _call(call.get("id"), inner.get("name"), inner.get("arguments"))
            if kind == "custom":
                del item["arguments"]
                item |= {"type": "custom_tool_call", "input": inner.get("input")}
            yield item


def _read(request: Request, raw: dict[str, Any], where: str, find: FindItem) -> list[Item]:
    kind = raw.get("type")
    if kind is None:
        kind = _REFERENCE if raw.keys() <= {"id", "type"} else "message"
    if kind == _REFERENCE:
        reference: Reference = read_part(request, raw, Reference, where)
        return [find(reference.id, f"{where}.id")]
    if isinstance(kind, str) and kind in _FOREIGN_TYPES:
        try:
            found = _translated(raw)
        except RecursionError:
            raise invalid(f"{where} is nested too deeply.", where) from None
        if not found:
            ignore(request, where, f"An item {kind} has no text that the model could read.")
        return [completed(convert(one, Item, where)) for one in found]
    for name in ("arguments", "output") if kind in _OF_FUNCTIONS else ():
        if isinstance(raw.get(name), dict | int | float):
            raw = {**raw, name: json.dumps(raw[name], ensure_ascii=False)}
    if kind in _OUTPUTS:
        if raw.get("output", "") is None:
            raw = {**raw, "output": ""}
        plain_parts(raw.get("output"), "input_text")
        without_media(request, raw.get("output"), "input_text", f"{where}.output")
    if kind == "message":
        plain_parts(raw.get("content"), "input_text")
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


def _translated(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an item of `_FOREIGN_TYPES` as function items; none if it has no text."""
    kind = item["type"]
    call_id = item.get("call_id") or item.get("id") or ""
    if kind in _FOREIGN_CALLS:
        name = kind.removesuffix("_call")
        return [_call(call_id, name, _text(item.get(_FOREIGN_CALLS[kind])))]
    if kind in _FOREIGN_OUTPUTS:
        return [_output(call_id, _text(item.get("output")))]
    if kind == "mcp_call":
        called = _call(call_id, item.get("name"), item.get("arguments"))
        found = item.get("output") or item.get("error")
        return [called] if found is None else [called, _output(call_id, _text(found))]
    return []


def _call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def _output(call_id: Any, found: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": found}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value or {}, ensure_ascii=False)
