"""What an answer over HTTP says, whole or put together from its stream."""

from __future__ import annotations

import json
from typing import Any

Body = dict[str, Any]
ONCE = ("prompt_logprobs", "prompt_token_ids", "usage")


def told(path: str, data: bytes, *, streamed: bool) -> Body:
    """Return what is the same however the request is computed, and however its answer is sent."""
    lines = data.decode().split("\n") if streamed else [data.decode()]
    pieces = [json.loads(line.removeprefix("data: ")) for line in lines if "{" in line]
    if path == "/v1/responses":
        return _response(pieces)
    if path == "/v1/messages":
        return _message(pieces)
    return _choices(pieces)


def _choices(pieces: list[Body]) -> Body:
    """Return an answer's own fields, and by index each choice's."""
    answer: Body = {}
    for piece in pieces:
        assert not piece.get("error"), piece
        for choice in piece.pop("choices"):
            said = choice.pop("message", None) or choice.pop("delta", None) or {}
            _add(answer.setdefault(choice["index"], {}), choice | _said(said))
        usage = _counts(piece.pop("usage", None))
        once = {k: piece[k] for k in ("prompt_logprobs", "prompt_token_ids") if piece.get(k)}
        _add(answer, once | ({"usage": usage} if usage else {}))
    for choice in answer.values():
        if isinstance(choice, dict) and not any(choice.get("logprobs", {}).values()):
            choice.pop("logprobs", None)  # an empty list, or none
    return answer


def _said(said: Body) -> Body:
    names = {"text": "content", "reasoning": "reasoning_content"}
    found: Body = {name: said.get(field) or "" for name, field in names.items()}
    for number, call in enumerate(said.get("tool_calls") or ()):
        function = call["function"]
        named = found.setdefault(f"call {call.get('index', number)}", {})
        _add(named, {k: function[k] for k in ("name", "arguments") if function.get(k)})
    return found


def _counts(usage: Body | None) -> Body:
    usage = usage or {}
    counts = {k: v for k, v in usage.items() if k.endswith("_tokens") and "cache" not in k}
    for name in ("completion_tokens_details", "output_tokens_details"):
        if details := usage.get(name):
            counts |= {k: v for k, v in details.items() if k in ("reasoning_tokens",)}
    return counts


def _add(answer: Body, part: Body) -> None:
    """Texts and lists go on; all else is told once."""
    for name, value in part.items():
        if name in ONCE:
            assert value is None or answer.get(name) is None, f"{name} is told twice"
            answer[name] = value if answer.get(name) is None else answer[name]
        elif isinstance(value, dict):
            _add(answer.setdefault(name, {}), value)
        elif isinstance(value, str | list) and name not in ("finish_reason", "stop_reason"):
            answer[name] = answer[name] + value if name in answer else value
        elif value is not None:
            answer[name] = value


def _response(pieces: list[Body]) -> Body:
    texts: dict[int, str] = {}
    for piece in pieces[:-1]:
        if "delta" in piece:
            number = piece["output_index"]
            texts[number] = texts.get(number, "") + piece["delta"]
    whole = pieces[-1].get("response", pieces[-1])
    output = []
    for number, item in enumerate(whole["output"]):
        [part] = item.get("content") or [{}]
        said = part.get("text", item.get("arguments"))
        assert len(pieces) == 1 or texts.get(number, "") == said, (texts, item)
        output.append({k: v for k, v in item.items() if k not in ("id", "call_id")})
    return {
        "output": output,
        "usage": _counts(whole["usage"]),
        **{name: whole[name] for name in ("status", "incomplete_details", "error")},
    }


def _message(pieces: list[Body]) -> Body:
    if len(pieces) == 1:
        blocks, end = pieces[0]["content"], pieces[0]
    else:
        blocks, end = [], {}
        for piece in pieces:
            match piece["type"]:
                case "content_block_start":
                    blocks.append(piece["content_block"] | {"input": ""})
                case "content_block_delta":
                    for name, value in piece["delta"].items():
                        if name != "type":
                            name = "input" if name == "partial_json" else name
                            blocks[piece["index"]][name] = blocks[piece["index"]][name] + value
                case "message_delta":
                    end = piece["delta"] | {"usage": piece["usage"]}
                case "error":
                    raise AssertionError(piece)
        for block in blocks:
            called = block["type"] == "tool_use"
            block["input"] = json.loads(block["input"]) if called else None
    blocks = [{k: v for k, v in block.items() if k != "id" and v is not None} for block in blocks]
    usage = end["usage"]
    counts = _counts(usage) | {"input_tokens": sum(
        usage[k] for k in ("input_tokens", "cache_read_input_tokens")
    )}  # fmt: skip
    return {"blocks": blocks, "usage": counts} | {
        k: end[k] for k in ("stop_reason", "stop_sequence")
    }
