"""Items of a conversation that other services wrote.

Calls of tools that clients run become function calls, so that the model sees them. Items without
text for the prompt are left out.
"""

from __future__ import annotations

import json
from typing import Any

_CALLS = {"shell_call": "action", "local_shell_call": "action", "apply_patch_call": "operation"}
"""Calls of tools that clients run, and the field with the call's input."""
_OUTPUTS = {f"{name}_output" for name in _CALLS}
_LEFT_OUT = {
    "additional_tools",
    "code_interpreter_call",
    "compaction",
    "compaction_trigger",
    "computer_call",
    "configuration_update",
    "file_search_call",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_list_tools",
    "program",
    "program_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
}
FOREIGN_TYPES = {*_CALLS, *_OUTPUTS, "mcp_call", *_LEFT_OUT}


def translated(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an item of `FOREIGN_TYPES` as function items; none if it has no text."""
    kind = item["type"]
    call_id = item.get("call_id") or item.get("id") or ""
    if kind in _CALLS:
        name = kind.removesuffix("_call")
        return [_call(call_id, name, _text(item.get(_CALLS[kind])))]
    if kind in _OUTPUTS:
        return [_output(call_id, item.get("output"))]
    if kind == "mcp_call":
        called = _call(call_id, item.get("name"), item.get("arguments"))
        found = item.get("output") or item.get("error")
        return [called] if found is None else [called, _output(call_id, found)]
    return []


def _call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def _output(call_id: Any, found: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": _text(found)}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value or {}, ensure_ascii=False)
