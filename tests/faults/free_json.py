"""Where clients send JSON of their own, on every endpoint: bodies with a value in each place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "a"}]


def bodies(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and body of requests in which `value` changes no answer: all of them can be served."""
    schema = {"type": "object", "properties": {"x": {"type": "integer", "default": value}}}
    function = {"name": "f", "description": "d", "parameters": schema}
    tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "none"}
    arguments = json.dumps({"x": [value]})
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    kwargs = {"chat_template_kwargs": {"x": {"y": [value]}}}
    echoed = {"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [call]}]}
    flat = {"tools": [{"type": "function", **function}], "tool_choice": "none"}
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
    for fields in ({**tools, "messages": MESSAGES}, {**kwargs, "messages": MESSAGES}, echoed):
        yield "/v1/chat/completions", {**fields, "max_tokens": 2}
    del tools["tool_choice"]  # /tokenize has none
    for fields in ({**tools, "messages": MESSAGES}, {**kwargs, "messages": MESSAGES}, echoed):
        yield "/tokenize", fields
    for fields in (flat, kwargs):
        yield "/v1/responses", {"input": "a", "max_output_tokens": 2, **fields}
    items = [{"role": "user", "content": "a"}, item]
    yield "/v1/responses", {"input": items, "max_output_tokens": 2}
    anthropic = {"tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "none"}}
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {"x": value}}
    used = {"messages": [*MESSAGES, {"role": "assistant", "content": [use]}]}
    for fields in ({**anthropic, "messages": MESSAGES}, used):
        yield "/v1/messages/count_tokens", {"model": "tiny", **fields}
        yield "/v1/messages", {"model": "tiny", "max_tokens": 2, **fields}


def structures(value: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Path, body and the field at fault where `value` would have to be held to."""
    schema = {"type": "object", "properties": {"x": {"const": value}}, "required": ["x"]}
    tag = {"structures": [{"begin": "<", "schema": schema, "end": ">"}], "triggers": ["<"]}
    formatted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    function = {"name": "f", "parameters": schema}
    of_tool = "tools[0].function.parameters"
    for fields, param in (
        ({"guided_json": schema}, "guided_json"),
        ({"guided_json": json.dumps(schema)}, "guided_json"),
        ({"structured_outputs": {"json": schema}}, "structured_outputs.json"),
        ({"structured_outputs": {"structural_tag": tag}}, "structured_outputs.structural_tag"),
        ({"response_format": formatted}, "response_format.json_schema.schema"),
    ):
        yield "/v1/completions", {"prompt": "a", **fields}, param
        yield "/v1/chat/completions", {"messages": MESSAGES, **fields}, param
    tools = [{"type": "function", "function": function}]
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        body = {"messages": MESSAGES, "tools": tools, "tool_choice": choice}
        yield "/v1/chat/completions", body, of_tool
    flat = {"tools": [{"type": "function", **function}], "tool_choice": "required"}
    yield "/v1/responses", {"input": "a", **flat}, "tools[0].parameters"
    text = {"format": {"type": "json_schema", "name": "s", "schema": schema}}
    yield "/v1/responses", {"input": "a", "text": text}, "text.format.schema"
