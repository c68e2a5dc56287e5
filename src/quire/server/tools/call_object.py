"""A tool call that is written as a JSON object: `{"name": …, "arguments": {…}}`."""

from __future__ import annotations

import json
from collections.abc import Generator

from quire.server.tools.output import Output
from quire.server.tools.stream import Input, Wait, space, string, value

MAX_NAME = 256
"""Characters of a function's name or a key; what is longer is none."""


def call_object(source: Input, out: Output) -> Generator[None, None, str | None]:
    """Read `{"name": …, "arguments": {…}}`, whose arguments are streamed once the name is known.

    Returns:
        None, or what was read where it is no call: the beginning of a text.
    """
    read: list[str] = []
    name: str | None = None
    held: str | None = None
    begun = False
    if (yield from space(source, read.append)) != "{":
        return "".join(read)
    read.append(source.take(1))
    while (char := (yield from space(source, read.append))) and char != "}":
        if char == ",":
            read.append(source.take(1))
            continue
        key = yield from _text(source, read)
        if key is None or (yield from space(source, read.append)) != ":":
            break
        read.append(source.take(1))
        if key in ("arguments", "parameters") and not begun and name is not None:
            begun = True
            out.call(name)
            yield from arguments(source, out)
        elif key == "name" and name is None:
            yield from space(source, read.append)
            name = yield from _text(source, read)
            if not name:
                break
        else:
            start = len(read)
            if not (yield from value(source, read.append)):
                break
            if key in ("arguments", "parameters") and held is None:
                held = "".join(read[start:]).strip()
    complete = source.peek() == "}"
    if complete:
        read.append(source.take(1))
    if begun:
        return None
    if not complete or not name:
        return "".join(read)
    out.call(name)
    out.arguments(_plain(held or ""))
    return None


def arguments(source: Input, out: Output) -> Wait:
    """Stream the arguments of the call begun last; a string or null is what it stands for."""
    char = yield from space(source)
    if char in ("{", "["):
        yield from value(source, out.arguments)
        return
    written: list[str] = []
    yield from value(source, written.append)
    out.arguments(_plain("".join(written)))


def _plain(written: str) -> str:
    """Arguments as an object's text, where they are none or a string that holds it."""
    if written in ("", "null"):
        return "{}"
    if written.startswith('"'):
        try:
            return str(json.loads(written, strict=False))
        except ValueError:
            return written
    return written


def _text(source: Input, read: list[str]) -> Generator[None, None, str | None]:
    """The value of a JSON string, as it is `read`; None where there is none."""
    if source.peek() != '"':
        return None
    start = len(read)
    whole = yield from string(source, read.append)
    if not whole or sum(map(len, read[start:])) > MAX_NAME + 2:
        return None
    try:
        return str(json.loads("".join(read[start:]), strict=False))
    except ValueError:
        return None
