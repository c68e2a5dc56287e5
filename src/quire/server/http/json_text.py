"""JSON written by the server and by models: values that JSON cannot hold are repaired.

NaN and numbers beyond a double become null. A lone surrogate, which UTF-8 cannot hold, becomes
U+FFFD. So no text of a model ends its answer in an error.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
from starlette.responses import Response


def encode(message: object) -> bytes:
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(message, enc_hook=msgspec.json.decode)  # of `msgspec.Raw`
        return msgspec.json.encode(_mended(plain))


def json_response(message: object) -> Response:
    """Return `message` as the JSON of an answer with status 200."""
    return Response(encode(message), media_type="application/json")


def named_event(kind: str, **fields: object) -> bytes:
    """Return a server-sent event whose name is also the `type` of its object."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({"type": kind, **fields}))


def read_object(text: str) -> dict[str, Any] | None:
    """Return a call's arguments as an object; None if the text is none.

    Models write more than JSON has, and clients send their calls back as they came.
    """
    try:
        found = msgspec.json.decode(text)  # strict, and much the faster
    except (msgspec.DecodeError, UnicodeError):
        try:
            found = _mended(json.loads(text, strict=False))
        except (ValueError, RecursionError):
            return None
    except RecursionError:
        return None
    return found if isinstance(found, dict) else None


def read_arguments(text: str) -> dict[str, Any]:
    """Return a call's arguments as an object.

    An answer may end in the middle of a call. So a text that is no object, whole or at all, is
    an object that holds the text under the name `arguments`.
    """
    found = read_object(text or "{}")
    return {"arguments": text} if found is None else found


def well_formed(text: str) -> str:
    """Return `text` with U+FFFD in place of each lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _mended(value: Any) -> Any:
    match value:
        case str():
            return well_formed(value)
        case float():
            return value if math.isfinite(value) else None
        case list() | tuple():
            return [_mended(each) for each in value]
        case dict():
            return {_mended(key): _mended(each) for key, each in value.items()}
    return value
