"""Tool calls whose arguments are JSON: `{"name": …, "arguments": {…}}`, or a name and `{…}`.

Text may only look like a call. So a call is held back until its JSON is complete, and its text by
the source (`Input.hold`). If its arguments grow long, they are streamed; later errors in them are
passed on to the client.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence

from quire.server.tools.output import Output
from quire.server.tools.stream import (
    Input,
    goes_on,
    ignore,
    peek,
    rest,
    space,
    string,
    until,
    value,
)

HELD = 1024
"""Most characters of arguments that are held back."""
MAX_NAME = 256
"""Most characters of a function's name or a key."""
_KEYS = ("arguments", "parameters")


class _Call:
    """A call being read; `shown` once it is certainly one, `given` if it has arguments."""

    def __init__(self, out: Output, name: str = "", call_id: str | None = None) -> None:
        self.name = name
        self.shown = False
        self.given = False
        self._out = out
        self._id = call_id
        self._arguments: list[str] = []
        self._size = 0

    def argument(self, text: str, held: int) -> None:
        if self.shown:
            self._out.arguments(text)
            return
        self._arguments.append(text)
        self._size += len(text)
        if self.name and self._size > held:
            self.show()

    def show(self) -> None:
        """Write the call, because the text certainly is one."""
        if not self.shown:
            self.shown = True
            self._out.call(self.name, self._id)
            self._out.arguments("".join(self._arguments) if self.given else "{}")

    def replace(self, arguments: str) -> None:
        self._arguments = [arguments]


def call_object(
    source: Input, out: Output, *, ends: Sequence[str] = (), held: int = HELD, bare: bool = True
) -> Generator[None, None, bool]:
    """Read `{"name": …, "arguments": {…}}`; return whether it is a call.

    Args:
        ends: marks after the object.
        held: characters of arguments to hold back; 0 if the text is known to be a call.
        bare: arguments may be missing.
    """
    call = _Call(out)
    complete = (yield from _members(source, call, held)) and bool(call.name)
    return (yield from _ended(source, out, call, complete and (bare or call.given), ends))


def named_arguments(
    source: Input, out: Output, name: str, *, ends: Sequence[str] = (), call_id: str | None = None
) -> Generator[None, None, bool]:
    """Read the arguments of a call to `name`; return whether it is a call."""
    call = _Call(out, name, call_id)
    yield from space(source)
    none = False
    for mark in ends:
        none = none or (yield from goes_on(source, mark))
    complete = none or (yield from _arguments(source, call, HELD))
    return (yield from _ended(source, out, call, complete and 0 < len(name) <= MAX_NAME, ends))


def _ended(
    source: Input, out: Output, call: _Call, complete: bool, ends: Sequence[str]
) -> Generator[None, None, bool]:
    if complete:
        call.show()
    elif not call.shown:
        return False
    elif ends:
        yield from until(source, (), out.arguments, left=ends)
    else:
        yield from rest(source, out.arguments)
    return True


def _members(source: Input, call: _Call, held: int) -> Generator[None, None, bool]:
    """Read an object with the call's name and arguments; return whether it is one."""
    if (yield from space(source)) != "{":
        return False
    source.take(1)
    char = yield from space(source)
    while char != "}":
        key = yield from _text(source)
        if key is None or (yield from space(source)) != ":":
            return False
        source.take(1)
        if key in _KEYS and not call.given:
            if not (yield from _arguments(source, call, held)):
                return False
        elif key == "name" and not call.name:
            yield from space(source)
            call.name = (yield from _text(source)) or ""
            if not call.name:
                return False
        elif not (yield from value(source, ignore)):
            return False
        char = yield from space(source)
        if char == ",":
            source.take(1)
            if (yield from space(source)) == "}":
                return False
            char = ","
        elif char != "}":
            return False
    source.take(1)
    return True


def _arguments(source: Input, call: _Call, held: int) -> Generator[None, None, bool]:
    """Read the arguments; a string is unquoted, and null becomes {}."""
    char = yield from space(source)
    if char in ("{", "["):
        call.given = True
        return (yield from value(source, lambda text: call.argument(text, held)))
    written: list[str] = []
    call.given = yield from value(source, written.append)
    if call.given:
        call.replace(_plain("".join(written)))
    return call.given


def _plain(written: str) -> str:
    """Return the text of an object for arguments that are null or a JSON string."""
    if written == "null":
        return "{}"
    return str(json.loads(written, strict=False)) if written.startswith('"') else written


def _text(source: Input) -> Generator[None, None, str | None]:
    """Read a JSON string and return its value; None if the text is not a JSON string."""
    if (yield from peek(source)) != '"':
        return None
    read: list[str] = []
    size = 0

    def emit(text: str) -> None:
        nonlocal size
        size += len(text)
        if size <= MAX_NAME + 2:
            read.append(text)

    whole = yield from string(source, emit)
    return str(json.loads("".join(read))) if whole and size <= MAX_NAME + 2 else None
