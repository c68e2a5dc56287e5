"""Results of tools that are not text: the model reads an image if it can, or a note instead.

An agent cannot take back what its tools have returned, and a refusal would end its conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from quire.core.errors import QuireError
from quire.frontend.workers.tokenizer_worker import ChatPrompt
from quire.server.notices import ignore
from quire.server.openai.protocol import ChatMessage, ImageEmbedsPart, ImagePart, TextPart
from quire.server.state import server_state

if TYPE_CHECKING:
    from quire.frontend.async_llm import AsyncLLM

TOOL_ROLES = ("tool", "function")
_MEDIA = {
    "image_url": "image",
    "image_embeds": "image",
    "input_image": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
    "file": "file",
    "input_file": "file",
}
"""Types of parts in OpenAI's APIs, and their names in notes."""
_CALL = {"name": "look", "arguments": {}}
_PROBE: list[dict[str, Any]] = [
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "000000001", "type": "function", "function": _CALL}],
    },
    {
        "role": "tool",
        "tool_call_id": "000000001",
        "content": [{"type": "text", "text": "Seen."}, {"type": "image"}],
    },
]
_LOOK = {"name": "look", "description": "", "parameters": {"type": "object", "properties": {}}}


async def reads_images(engine: AsyncLLM, chat_template: str | None) -> bool:
    """Return whether the model reads images, and its chat template renders them in tool results.

    Args:
        chat_template: replaces the model's own.
    """
    vision = engine.model_config.vision
    if vision is None or not _accepts_images(engine):
        return False
    tools: list[dict[str, object]] = [{"type": "function", "function": _LOOK}]
    try:
        tokens = await engine.tokenize(ChatPrompt(_PROBE, chat_template, tools=tools), True)
    except QuireError:  # no template, or one without tools
        return False
    return tokens.count(vision.marker) == 1


def _accepts_images(engine: AsyncLLM) -> bool:
    images = engine.resolved.config.images
    return images is not None and images.most > 0


def left_out(request: Request, kind: str, where: str) -> str:
    """Return what the model reads in place of a part of a result, and report it to the client.

    Raises:
        ApiError: 400, with `--strict-fields`.
    """
    reason = "this model reads text"
    if _accepts_images(server_state(request).engine):
        reason = (
            "the chat template has no place for it" if kind == "image" else f"{reason} and images"
        )
    ignore(request, where, f"The model reads a note in place of this {kind}: {reason}.")
    return f"[{kind} left out: {reason}]"


def without_media(request: Request, parts: Any, text_type: str, where: str) -> None:
    """Replace sounds, files, and images that the model cannot read by notes, in place.

    Args:
        parts: decoded JSON; unchanged if it is not a list of parts.
        text_type: the type of a part that is text.
    """
    images = server_state(request).tool_images
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        name = _MEDIA.get(kind) if isinstance(kind, str) else None
        if name is not None and not (images and name == "image"):
            note = left_out(request, name, f"{where}[{index}]")
            parts[index] = {"type": text_type, "text": note}


def without_images(request: Request, messages: Sequence[ChatMessage]) -> None:
    """Replace images that the model cannot read in results of tools by notes, in place."""
    if server_state(request).tool_images:
        return
    for index, message in enumerate(messages):
        if message.role not in TOOL_ROLES or not isinstance(message.content, list):
            continue
        for place, part in enumerate(message.content):
            if isinstance(part, ImagePart | ImageEmbedsPart):
                note = left_out(request, "image", f"messages[{index}].content[{place}]")
                message.content[place] = TextPart(note)
