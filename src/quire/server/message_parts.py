"""Forms of a chat's messages that other servers accept too, in the form of OpenAI's API.

They mean the same, so clients that mix up the APIs are served.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from quire.server.tool_results import TOOL_ROLES, without_media

_TEXTS = {"text": ("text", "input_text", "output_text"), "input_text": ("text", "input_text")}
"""The type of a text in an API → types that become it."""


def plain_parts(parts: Any, text_type: str = "text") -> None:
    """Give the parts of a message the form of one API, in place.

    Texts may be strings, or objects without a type or with the type of another API. An image's
    address may be a string. Everything else is unchanged.

    Args:
        parts: decoded JSON; unchanged if it is not a list.
        text_type: the type of a text in the API.
    """
    texts = _TEXTS[text_type]
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        if isinstance(part, str):
            parts[index] = {"type": text_type, "text": part}
        elif isinstance(part, dict):
            if isinstance(part.get("text"), str) and part.get("type", "text") in texts:
                part["type"] = text_type
            elif part.get("type") == "image_url" and isinstance(part.get("image_url"), str):
                part["image_url"] = {"url": part["image_url"]}


def move_thinking(message: dict[str, Any]) -> None:
    """Move `thinking` parts of an assistant's message to its `reasoning_content`, in place.

    A message that has its reasoning as text too only loses the parts.
    """
    parts = message.get("content")
    if message.get("role") != "assistant" or not isinstance(parts, list):
        return
    kept, thoughts = [], []
    for part in parts:
        thought = _thought(part)
        if thought is None:
            kept.append(part)
        else:
            thoughts.append(thought)
    if thoughts:
        message["content"] = kept or None
        if not (message.get("reasoning_content") or message.get("reasoning")):
            message["reasoning_content"] = "".join(thoughts)


def _thought(part: Any) -> str | None:
    """Return the text of a `thinking` part, which may be a list of texts; None for other parts."""
    if not isinstance(part, dict) or part.get("type") != "thinking":
        return None
    found = part.get("thinking")
    texts = [
        each.get("text") if isinstance(each, dict) else each
        for each in (found if isinstance(found, list) else [found])
    ]
    plain = [text for text in texts if isinstance(text, str)]
    return "".join(plain) if len(plain) == len(texts) else None


def mend_chat(request: Request, body: Any) -> None:
    """Give the messages of a chat's decoded JSON the form of OpenAI's API, in place.

    Tools' results lose what is not text; see `tool_results.without_media`.
    """
    messages = body.get("messages") if isinstance(body, dict) else None
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict):
            move_thinking(message)
            plain_parts(message.get("content"))
            if message.get("role") in TOOL_ROLES:
                where = f"messages[{index}].content"
                without_media(request, message.get("content"), "text", where)
