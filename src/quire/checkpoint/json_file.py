"""JSON files of a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from quire.core.errors import CheckpointError

MAX_JSON_BYTES = 256 << 20


def read_json(path: Path, kind: type[Any] = dict) -> Any:
    """Return the JSON object in `path`, or the list if `kind` is `list`.

    Raises:
        CheckpointError: the file is unreadable, too large or nothing of this kind; names it.
    """
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ValueError(f"it is larger than {MAX_JSON_BYTES >> 20} MiB")
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, kind):
            raise ValueError("it is not a JSON object" if kind is dict else "it is no JSON list")
    except (OSError, ValueError, RecursionError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise CheckpointError(
            f"{path.name} cannot be read: {reason}.", fix="Download or copy the file again."
        ) from error
    return content


def read_config(path: Path) -> dict[str, Any]:
    """Return `read_json` for data that travels to the engine's process: 64-bit numbers and valid
    text.

    Raises:
        CheckpointError: as `read_json`, and for what no message can hold.
    """
    content: dict[str, Any] = read_json(path)
    try:
        msgspec.msgpack.encode(content)
    except (OverflowError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path.name} holds what no model has: {error}.",
            fix="Take the config.json that was published with the weights.",
        ) from error
    return content
