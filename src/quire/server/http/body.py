"""Decode a request's bytes into a typed object, with limits, and errors that name the field.

A body is decoded at once. If that fails, fields without effect are removed from it (see
`server.leniency`), each with a notice, and it is converted again. As in other servers, 5.0 is an
integer, and numbers and booleans may be strings.
"""

from __future__ import annotations

import asyncio
import re
from codecs import BOM_UTF8
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar, cast

import msgspec
from starlette.requests import Request

from quire.server.counts import UNCOUNTED_BYTES, BodyCounter, field_at_end
from quire.server.errors import ApiError, invalid, not_supported
from quire.server.leniency import Relaxed, choices_at, relax
from quire.server.notices import report
from quire.server.state import server_state

T = TypeVar("T", bound=msgspec.Struct)
Mend = Callable[[Request, Any], None]

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>.*)`")
_WHERE = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")
_TOO_LONG = re.compile(r"Expected `array` of length <= (?P<limit>\d+)")
_OTHER_MEDIUM = re.compile(r"Invalid value '[^']*(audio|video|file)")
"""An error in the type of a part."""
_LONGEST_VALUE = 64
"""Most characters of a value in an error."""


async def read_body(request: Request, limit: int) -> bytearray:
    """Return the whole body.

    Raises:
        ApiError: 415 if its headers do not say plain JSON; 413 beyond `limit` bytes, before the
            rest is read; 400 if it has too many values (see `server.counts`).
        ClientDisconnect: the client disconnected while sending.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The body's Content-Type is {kind or 'not set'}; send application/json.",
            headers={"Connection": "close"},
        )
    coding = request.headers.get("content-encoding", "")
    if coding not in ("", "identity"):
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The body's Content-Encoding is {coding}; send it without encoding.",
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
    body = bytearray()  # grows in place: joining 30 MiB would block for 10 ms
    size = 0
    counter, refusal = BodyCounter(), None
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large
        if refusal is not None:
            continue  # read the rest: clients read the answer after they have sent everything
        body += part
        if size > UNCOUNTED_BYTES:
            counted = bytes(body) if size - len(part) <= UNCOUNTED_BYTES else part
            if (refusal := counter.add(counted)) is not None:
                refusal.param = await field_at_end(body)
                body.clear()
    if refusal is not None:
        raise refusal
    if body.startswith(BOM_UTF8):
        del body[: len(BOM_UTF8)]
    if size > UNCOUNTED_BYTES:
        await asyncio.sleep(0)  # let other requests run before decoding
    return body


async def read_request(request: Request, kind: type[T], mend: Mend | None = None) -> T:
    """Return the body as a `kind`; fields without effect become notices (see `server.notices`).

    JSON must be valid: no NaN, no lone surrogates, no unbounded integers or nesting.

    Args:
        mend: changes decoded JSON in place before it is converted to a `kind`.

    Raises:
        ApiError: names the wrong field; see `read_body` for others.
        ClientDisconnect: the client disconnected while sending.
    """
    server = server_state(request)
    body = await read_body(request, server.options.max_body_bytes)
    try:
        return cast(T, _decoded(body, kind))
    except msgspec.ValidationError as error:
        failure = error
    await asyncio.sleep(0)  # let other requests run between the parts of a large body
    try:
        value = _decoded(body, Any)
    except msgspec.ValidationError:  # a number out of range for any type
        raise _explain(str(failure), kind) from None
    await asyncio.sleep(0)
    if mend is not None:
        mend(request, value)
    relaxed = Relaxed(value, kind, strict=server.options.strict_fields)
    for _ in relaxed.steps():
        await asyncio.sleep(0)
    for notice in relaxed.notices:
        report(request, notice)
    return cast(T, convert(value, kind, ""))


def read_part(request: Request, value: Any, kind: Any, where: str) -> Any:
    """Return the part of a body at `where` as a `kind`, as leniently as `read_request`.

    Raises:
        ApiError: 400, naming the field at fault.
    """
    try:
        return convert(value, kind, where)
    except ApiError:
        strict = server_state(request).options.strict_fields
        for notice in relax(value, kind, where, strict=strict):
            report(request, notice)
        return convert(value, kind, where)


def convert(value: Any, kind: Any, where: str) -> Any:
    """Return decoded JSON, at `where` of a body, as a `kind`.

    Raises:
        ApiError: 400, naming the field at fault.
    """
    try:
        return msgspec.convert(value, kind, strict=False, str_keys=True)
    except msgspec.ValidationError as error:
        raise _explain(str(error), kind, where) from None


def read_query(request: Request, kind: type[T]) -> T:
    """Return the query's parameters as a `kind`; the last of repeated ones counts.

    Raises:
        ApiError: 400, naming the parameter at fault.
    """
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        explained = _explain(str(error), kind)
        given = request.query_params.get(explained.param or "", "")
        raise invalid(f"{explained} It is {given[:_LONGEST_VALUE]!r}.", explained.param) from None


def _decoded(body: bytes | bytearray, kind: Any) -> Any:
    """Decode JSON. Raises `ApiError` if it is invalid, `msgspec.ValidationError` if no `kind`."""
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except msgspec.ValidationError:
        raise
    except UnicodeDecodeError:  # its position would be within a string
        raise invalid("The body is not valid UTF-8.", None) from None
    except msgspec.DecodeError as error:
        raise invalid(f"The body is not valid JSON: {error}.", None) from None
    except RecursionError:
        raise invalid("The body is nested too deeply.", None) from None


def _explain(text: str, kind: Any, prefix: str = "") -> ApiError:
    """Return msgspec's error as one that names the field, as the client wrote it."""
    where = _WHERE.search(text)
    path = _join(prefix, where["path"]) if where else prefix
    what = text[: where.start()] if where else text
    if unknown := _UNKNOWN.fullmatch(what):
        field = _join(path, unknown["field"])
        return invalid(f"Unknown field {field}.", field)
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
    if where and what.startswith("Invalid ") and (known := choices_at(kind, where["path"])):
        what += f"; it may be {' or '.join(known)}"
        if _OTHER_MEDIUM.match(what):
            what += "; audio, video and files are not served"
    # msgspec gives no path for a key of an object, so name the object.
    return invalid(f"{path} is wrong: {what}.", path.removesuffix("[...]"))


def _join(path: str, field: str) -> str:
    return f"{path}.{field}" if path and field else path or field
