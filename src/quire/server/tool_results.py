"""Results of tools that are not text: the model gets a note instead.

An agent cannot take back what its tools have returned, and a refusal would end its conversation.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from quire.server.notices import ignore

_MEDIA = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
    "file": "file",
    "input_file": "file",
}
"""Types of parts in OpenAI's APIs, and their names in notes."""


def left_out(request: Request, kind: str, where: str) -> str:
    """Return what the model reads in place of a part of a result, and report it to the client.

    Raises:
        ApiError: 400, with `--strict-fields`.
    """
    ignore(request, where, f"The model reads text; it reads a note in place of this {kind}.")
    return f"[{kind} left out: this model reads text]"


def without_media(request: Request, parts: Any, text_type: str, where: str) -> None:
    """Replace images, sounds and files among the parts of a result by notes, in place.

    Args:
        parts: decoded JSON; unchanged if it is not a list of parts.
        text_type: the type of a part that is text.
    """
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and (name := _MEDIA.get(kind)) is not None:
            note = left_out(request, name, f"{where}[{index}]")
            parts[index] = {"type": text_type, "text": note}
