"""A server of the three APIs that plays a capable model, and notes what clients send.

It knows just enough of each API for the clients' own parsers; see `script` for its answers.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from tests.clients.script import Ask, Reply, Tool, reply, texts_in

HEADERS = ("anthropic-version", "anthropic-beta", "openai-beta")
MODEL = "tiny"
Event = tuple[str, dict[str, Any]]


class ScriptedServer:
    """Runs until `close`; `rows` has each request as a dict of method, path, headers and body."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._ids = itertools.count(1)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.note(self, None)
                model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "quire"}
                self.send_json({"object": "list", "data": [model]})

            def do_POST(self) -> None:
                size = int(self.headers.get("content-length", 0))
                body = json.loads(self.rfile.read(size))
                row = outer.note(self, body)
                answer, events = outer.answer(self.path.partition("?")[0], body)
                if answer is not None and "id" in answer:
                    row["answered_as"] = answer["id"]
                if body.get("stream"):
                    self.send_events(events, named="/chat/" not in self.path)
                else:
                    self.send_json(answer or {})

            def send_json(self, answer: dict[str, Any]) -> None:
                data = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def send_events(self, events: Iterator[Event], *, named: bool) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                for name, data in events:
                    head = f"event: {name}\n" if named else ""
                    self.wfile.write(f"{head}data: {json.dumps(data)}\n\n".encode())
                if not named:
                    self.wfile.write(b"data: [DONE]\n\n")
                self.close_connection = True

            def log_message(self, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def note(self, handler: BaseHTTPRequestHandler, body: Any) -> dict[str, Any]:
        headers = {name: handler.headers[name] for name in HEADERS if name in handler.headers}
        row = {"method": handler.command, "path": handler.path, "headers": headers, "body": body}
        self.rows.append(row)
        return row

    def answer(self, path: str, body: dict[str, Any]) -> tuple[dict[str, Any] | None, Any]:
        """Return the whole answer and the events of the streamed one."""
        number = next(self._ids)
        if path.endswith("/chat/completions"):
            return _chat(reply(_chat_ask(body)), number)
        if path.endswith("/messages"):
            return _message(reply(_message_ask(body)), number)
        if path.endswith("/responses"):
            return _response(reply(_response_ask(body)), number, body)
        if path.endswith("/embeddings"):
            texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
            data = [
                {"object": "embedding", "index": index, "embedding": [0.5, 0.25]}
                for index in range(len(texts))
            ]
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            return {"object": "list", "data": data, "model": MODEL, "usage": usage}, iter(())
        if path.endswith(("/count_tokens", "/input_tokens")):
            return {"input_tokens": 7}, iter(())
        if path.endswith("/completions"):
            choice = {"index": 0, "text": " a cat.", "logprobs": None, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
            whole = {
                "id": f"cmpl-{number}",
                "object": "text_completion",
                "created": 0,
                "model": MODEL,
                "choices": [choice],
            }
            return {**whole, "usage": usage}, iter([("", whole)])
        return {}, iter(())


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


def _chat(found: Reply, number: int) -> tuple[dict[str, Any], Iterator[Event]]:
    message: dict[str, Any] = {"role": "assistant", "content": found.text or None}
    delta = dict(message)
    reason = "stop"
    if found.call is not None:
        reason = "tool_calls"
        function = {"name": found.call.name, "arguments": found.arguments}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        message["tool_calls"] = [call]
        delta["tool_calls"] = [{"index": 0, **call}]
    head = {"id": f"chatcmpl-{number}", "created": 0, "model": MODEL}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    chunk = {**head, "object": "chat.completion.chunk"}
    first = {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    last = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    used = {**chunk, "choices": [], "usage": usage}
    return whole, iter([("", first), ("", last), ("", used)])


def _message(found: Reply, number: int) -> tuple[dict[str, Any], Iterator[Event]]:
    usage = {"input_tokens": 7, "output_tokens": 3}
    block: dict[str, Any] = {"type": "text", "text": found.text}
    empty: dict[str, Any] = {"type": "text", "text": ""}
    change: dict[str, Any] = {"type": "text_delta", "text": found.text}
    reason = "end_turn"
    if found.call is not None:
        reason = "tool_use"
        empty = {"type": "tool_use", "id": f"toolu_{number}", "name": found.call.name, "input": {}}
        block = {**empty, "input": json.loads(found.arguments)}
        change = {"type": "input_json_delta", "partial_json": found.arguments}
    head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": MODEL}
    stop = {"stop_reason": reason, "stop_sequence": None}
    whole = {**head, "content": [block], "usage": usage, **stop}
    began = {**head, "content": [], "usage": usage, "stop_reason": None, "stop_sequence": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": began},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        {"type": "content_block_delta", "index": 0, "delta": change},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": usage},
        {"type": "message_stop"},
    ]
    return whole, iter([(event["type"], event) for event in events])


def _response(
    found: Reply, number: int, body: dict[str, Any]
) -> tuple[dict[str, Any], Iterator[Event]]:
    if found.call is not None:
        item: dict[str, Any] = {
            "type": "function_call",
            "id": f"fc_{number}",
            "call_id": f"call_{number}",
            "name": found.call.name,
            "arguments": found.arguments,
            "status": "completed",
        }
    else:
        text = {"type": "output_text", "text": found.text, "annotations": [], "logprobs": []}
        item = {
            "type": "message",
            "id": f"msg_{number}",
            "role": "assistant",
            "status": "completed",
            "content": [text],
        }
    usage = {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10,
    }
    whole = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": MODEL,
        "output": [item],
        "usage": usage,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "top_p": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "text": body.get("text") or {"format": {"type": "text"}},
        "reasoning": {},
    }
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": _open(item)},
        *_item_events(item),
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    numbered = [{**event, "sequence_number": i} for i, event in enumerate(events)]
    return whole, iter([(event["type"], event) for event in numbered])


def _open(item: dict[str, Any]) -> dict[str, Any]:
    """The item as its first event has it."""
    if item["type"] == "message":
        return {**item, "content": [], "status": "in_progress"}
    return {**item, "arguments": "", "status": "in_progress"}


def _item_events(item: dict[str, Any]) -> list[dict[str, Any]]:
    at: dict[str, Any] = {"item_id": item["id"], "output_index": 0}
    if item["type"] == "function_call":
        told = item["arguments"]
        return [
            {"type": "response.function_call_arguments.delta", **at, "delta": told},
            {"type": "response.function_call_arguments.done", **at, "arguments": told},
        ]
    [part] = item["content"]
    at["content_index"] = 0
    return [
        {"type": "response.content_part.added", **at, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **at, "delta": part["text"], "logprobs": []},
        {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []},
        {"type": "response.content_part.done", **at, "part": part},
    ]
