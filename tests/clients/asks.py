"""What matters of a request, read from each of the three APIs."""

from __future__ import annotations

from typing import Any

from tests.clients.script import Ask, Tool, texts_in


def ask_of(path: str, body: dict[str, Any]) -> Ask | None:
    """Return what matters of a request; None if it is not one that a model answers in a chat."""
    for end, read in (
        ("/chat/completions", _chat_ask),
        ("/messages", _message_ask),
        ("/responses", _response_ask),
    ):
        if path.endswith(end):
            return read(body)
    return None


def _chat_ask(body: dict[str, Any]) -> Ask:
    tools = [
        Tool(tool["function"]["name"], tool["function"].get("parameters") or {})
        for tool in body.get("tools") or ()
        if tool.get("type") == "function"
    ]
    choice = body.get("tool_choice")
    wanted = body.get("response_format") or {}
    messages = body["messages"]
    return Ask(
        tools=() if choice == "none" else tools,
        forced=_forced(choice, "function"),
        answered=any(message["role"] == "tool" for message in messages),
        schema=(wanted.get("json_schema") or {}).get("schema"),
        is_json=wanted.get("type") == "json_object",
        prompt=texts_in(messages),
    )


def _message_ask(body: dict[str, Any]) -> Ask:
    tools = [
        Tool(tool["name"], tool["input_schema"])
        for tool in body.get("tools") or ()
        if "input_schema" in tool
    ]
    choice = (body.get("tool_choice") or {}).get("type")
    wanted = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
    prompt = texts_in([body.get("system"), body["messages"]])
    forced = {"any": "", "tool": (body.get("tool_choice") or {}).get("name")}.get(choice)
    return Ask(
        tools=() if choice == "none" else tools,
        forced=forced,
        answered="tool_result" in prompt,
        schema=wanted.get("schema"),
        prompt=prompt,
    )


def _response_ask(body: dict[str, Any]) -> Ask:
    tools = [
        Tool(tool["name"], tool.get("parameters") or {})
        for tool in body.get("tools") or ()
        if tool["type"] == "function"
    ]
    wanted = (body.get("text") or {}).get("format") or {}
    prompt = texts_in([body.get("instructions"), body["input"]])
    return Ask(
        tools=() if body.get("tool_choice") == "none" else tools,
        forced=_forced(body.get("tool_choice"), None),
        answered="function_call_output" in prompt,
        schema=wanted.get("schema"),
        is_json=wanted.get("type") == "json_object",
        prompt=prompt,
    )


def _forced(choice: Any, within: str | None) -> str | None:
    if isinstance(choice, dict):
        named = choice.get(within, {}) if within else choice
        return str(named.get("name", ""))
    return "" if choice == "required" else None
