"""Gemma 4: `<|tool_call>call:name{key:<|"|>text<|"|>,days:3}<tool_call|>`.

Keys have no quotes. Strings have marks in place of quotes, and no escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator

from quire.server.tools.call_object import MAX_NAME
from quire.server.tools.output import Output
from quire.server.tools.stream import Input, Wait, goes_on, peek, space, starts, until, word

BEGIN, END, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
MAX_DEPTH = 64
_CLOSE = {"{": "}", "[": "]"}
_IN_NAME = re.compile(r"[^\s<>{}\[\]:,]")
_WORDS = {"None": "null", "True": "true", "False": "false"}
_LITERAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")


def gemma4(source: Input, out: Output) -> Wait:
    """Read calls, each between its marks, and text around them."""
    while (yield from until(source, [BEGIN], out.content)) is not None:
        source.hold(BEGIN)
        yield from space(source)
        name = (yield from _word(source)) if (yield from starts(source, "call:")) else ""
        written: list[str] = []
        begun = name and (yield from peek(source)) == "{"
        if begun and (yield from _collection(source, written, 0)):
            out.call(name)
            out.arguments("".join(written))
            yield from space(source)
            yield from starts(source, END)
        else:
            out.content(source.release())


def _value(source: Input, written: list[str], depth: int) -> Generator[None, None, bool]:
    """Read one value and write it as JSON; return whether it is one."""
    char = yield from space(source)
    if depth > MAX_DEPTH:
        return False
    if char in _CLOSE:
        return (yield from _collection(source, written, depth))
    if (yield from goes_on(source, QUOTE)):
        text = yield from _text(source)
        written.append(json.dumps(text, ensure_ascii=False))
        return text is not None
    read = yield from _word(source)
    written.append(_WORDS.get(read, read))
    return _LITERAL.fullmatch(written[-1]) is not None


def _collection(source: Input, written: list[str], depth: int) -> Generator[None, None, bool]:
    """Read a list, or an object with its keys, and write it as JSON."""
    kind = source.take(1)
    written.append(kind)
    begin = ""
    while (char := (yield from space(source))) != _CLOSE[kind]:
        if begin:
            if char != ",":
                return False
            source.take(1)
            yield from space(source)
        written.append(begin)
        if kind == "{":
            read = _text if (yield from goes_on(source, QUOTE)) else _word
            key = yield from read(source)
            if not key or (yield from space(source)) != ":":
                return False
            source.take(1)
            written.append(f"{json.dumps(key, ensure_ascii=False)}: ")
        if not (yield from _value(source, written, depth + 1)):
            return False
        begin = ", "
    source.take(1)
    written.append(_CLOSE[kind])
    return True


def _text(source: Input) -> Generator[None, None, str | None]:
    """Read a string between its marks; None if the second mark is missing."""
    yield from starts(source, QUOTE)
    parts: list[str] = []
    found = yield from until(source, [QUOTE], parts.append)
    return "".join(parts) if found else None


def _word(source: Input) -> Generator[None, None, str]:
    """Read a name or a literal, up to white space or a bracket."""
    return word(source, _IN_NAME, MAX_NAME)
