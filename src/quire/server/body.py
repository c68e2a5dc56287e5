"""From a request's bytes to a typed object: bounded, strict, and naming the field at fault."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from quire.core.registry import did_you_mean
from quire.server.choices import choices_at
from quire.server.counts import UNCOUNTED_BYTES, BodyCounter
from quire.server.errors import ApiError, invalid, not_supported

T = TypeVar("T", bound=msgspec.Struct)

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>.*)`")
_WHERE = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")
_TOO_LONG = re.compile(r"Expected `array` of length <= (?P<limit>\d+)")
_OTHER_PART = re.compile(r"Invalid value .*content\[\d+\]\.type`$", re.DOTALL)
"""Of a part that is no text: an image, a sound, a file."""
_LONGEST_NAME = 64
"""Longer names of unknown fields are no slips of the pen, and slow to compare."""


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body.

    Raises:
        ApiError: 415 if it does not claim to be plain JSON; 413 beyond `limit` bytes, before the
            rest is read; 400 if it holds too many values (see `server.counts`).
        ClientDisconnect: the client went away while sending.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The body's Content-Type is {kind or 'not set'}; send application/json.",
            headers={"Connection": "close"},
        )
    if (coding := request.headers.get("content-encoding", "identity")) != "identity":
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The body's Content-Encoding is {coding}; send it as it is.",
            headers={"Connection": "close"},
        )
    too_large = ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"The body is larger than {limit} bytes; send a shorter prompt, or raise --max-body-bytes.",
        code="body_too_large",
        headers={"Connection": "close"},
    )
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and (len(announced) > 18 or int(announced) > limit):
        raise too_large
    parts: list[bytes] = []
    size = 0
    counter, refusal = BodyCounter(), None
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large
        if refusal is not None:
            continue  # read on: a client reads the answer once it has sent everything
        parts.append(part)
        if size > UNCOUNTED_BYTES:
            counted = b"".join(parts) if size - len(part) <= UNCOUNTED_BYTES else part
            if (refusal := counter.add(counted)) is not None:
                parts.clear()
    if refusal is not None:
        raise refusal
    return b"".join(parts)


def decode(body: bytes, kind: type[T]) -> T:
    """`body` as a `kind`.

    Strict JSON: no NaN, no lone surrogates, no unbounded integers or nesting.

    Raises:
        ApiError: 400, naming the field at fault.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error), kind) from None
    except UnicodeDecodeError:  # its position would be within a string
        raise invalid("The body is not valid UTF-8.", None) from None
    except msgspec.DecodeError as error:
        raise invalid(f"The body is not valid JSON: {error}.", None) from None
    except RecursionError:
        raise invalid("The body is nested too deeply.", None) from None


def convert(value: Any, kind: Any, where: str) -> Any:
    """A part of a body, which is at `where`, as a `kind`.

    Raises:
        ApiError: 400, naming the field at fault.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error), kind, where) from None


def read_query(request: Request, kind: type[T]) -> T:
    """The query's parameters as a `kind`; of one that is given twice, the last counts.

    Raises:
        ApiError: 400, naming the parameter at fault.
    """
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        explained = _explain(str(error), kind)
        given = request.query_params.get(explained.param or "", "")
        raise invalid(f"{explained} It is {given[:_LONGEST_NAME]!r}.", explained.param) from None


def _explain(text: str, kind: Any, prefix: str = "") -> ApiError:
    """msgspec's complaint as an error that names the field, as the client wrote it."""
    where = _WHERE.search(text)
    path = _join(prefix, where["path"]) if where else prefix
    what = text[: where.start()] if where else text
    if unknown := _UNKNOWN.fullmatch(what):
        field = unknown["field"]
        similar = not path and len(field) <= _LONGEST_NAME
        hint = did_you_mean(field, _fields(kind)) if similar else ""
        end = f"; {hint}" if hint.startswith("did") else "."
        return invalid(f"Unknown field {_join(path, field)}{end}", _join(path, field))
    if missing := _MISSING.fullmatch(what):
        field = _join(path, missing["field"])
        return invalid(f"{field} is missing.", field)
    if (too_long := _TOO_LONG.fullmatch(what)) and int(too_long["limit"]):
        limit = too_long["limit"]
        return invalid(f"{path} has more than {limit} entries; at most {limit} are allowed.", path)
    if what.startswith("Expected `null`"):
        return not_supported(path)
    if not path:
        return invalid(f"The body is wrong: {what}.", None)
    if _OTHER_PART.match(text):
        what += "; messages are text here: images, audio and files are not served"
    elif where and what.startswith("Invalid ") and (known := choices_at(kind, where["path"])):
        what += f"; it may be {' or '.join(known)}"
    # A key of an object has no path of its own; its object's name is what the client can find.
    return invalid(f"{path} is wrong: {what}.", path.removesuffix("[...]"))


def _join(path: str, field: str) -> str:
    return f"{path}.{field}" if path and field else path or field


def _fields(kind: type[msgspec.Struct]) -> list[str]:
    """The fields that a value other than null may be given."""
    fields = msgspec.structs.fields(kind)
    return [field.encode_name for field in fields if field.type is not type(None)]
