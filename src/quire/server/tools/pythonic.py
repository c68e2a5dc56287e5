"""Tool calls as a list of Python calls: `[get_weather(city="Paris", days=3), …]`.

Nothing is evaluated: names, keywords and literals are read one by one and written as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator

from quire.server.tools.output import Output
from quire.server.tools.stream import Input, Wait, peek, rest, space, starts, word

_NAME = re.compile(r"[A-Za-z0-9_.\-]")
_NUMBER = re.compile(r"[0-9+\-.eE_]")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false"}
_WORDS["null"] = "null"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_ESCAPES["/"] = "/"  # JSON's, which models mix in
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_HEX_DIGIT = re.compile(r"[0-9a-fA-F]")
_HEX = {"x": 2, "u": 4, "U": 8}
_CLOSE = {"[": "]", "(": ")", "{": "}"}
MAX_DEPTH = 64


class _NotPythonError(Exception):
    """The text is not a literal."""


def pythonic(source: Input, out: Output) -> Wait:
    """Read a text of one such list, perhaps between `<|python_start|>` and `<|python_end|>`."""
    source.hold()
    yield from space(source)
    yield from starts(source, "<|python_start|>")
    if (yield from space(source)) == "[":
        source.take(1)
        begun = out.num_calls
        while _NAME.match((yield from space(source))):
            name = yield from word(source, _NAME)
            if (yield from peek(source)) != "(":
                break
            source.take(1)
            out.call(name)
            yield from _arguments(source, out)
            if (yield from space(source)) != ",":
                break
            source.take(1)
            source.hold()
        out.content(source.release())
        if out.num_calls > begun:
            if (yield from space(source)) == "]":
                source.take(1)
            yield from starts(source, "<|python_end|>")
    out.content(source.release())
    yield from rest(source, out.content)


def _arguments(source: Input, out: Output) -> Wait:
    """Write `key=literal, …)` as a JSON object; it ends at the first invalid literal."""
    begin = "{"
    try:
        while (char := (yield from space(source))) and char != ")":
            if char == ",":
                source.take(1)
                continue
            key = yield from word(source, _NAME)
            if not key or (yield from space(source)) != "=":
                raise _NotPythonError
            source.take(1)
            out.arguments(f"{begin}{json.dumps(key)}: ")
            begin = ", "
            yield from _literal(source, out, 0)
    except _NotPythonError:
        yield from _skip(source)
    source.take(1)
    out.arguments("{}" if begin == "{" else "}")


def _literal(source: Input, out: Output, depth: int) -> Wait:
    char = yield from space(source)
    if depth > MAX_DEPTH:
        raise _NotPythonError
    if char and char in "\"'":
        yield from _string(source, out)
    elif char and char in "[({":
        yield from _collection(source, out, depth)
    elif _NUMBER.match(char):
        out.arguments(_number((yield from word(source, _NUMBER))))
    else:
        name = yield from word(source, _NAME)
        if name not in _WORDS:
            raise _NotPythonError
        out.arguments(_WORDS[name])


def _collection(source: Input, out: Output, depth: int) -> Wait:
    """Write a list, a tuple or a dict with string keys; trailing commas are allowed."""
    kind = source.take(1)
    out.arguments("{" if kind == "{" else "[")
    first = True
    while (char := (yield from space(source))) and char != _CLOSE[kind]:
        if char == ",":
            source.take(1)
            continue
        out.arguments("" if first else ", ")
        first = False
        if kind == "{" and char not in "\"'":
            raise _NotPythonError
        yield from _literal(source, out, depth + 1)
        if kind == "{":
            if (yield from space(source)) != ":":
                raise _NotPythonError
            source.take(1)
            out.arguments(": ")
            yield from _literal(source, out, depth + 1)
    source.take(1)
    out.arguments("}" if kind == "{" else "]")


def _string(source: Input, out: Output) -> Wait:
    quote = source.take(1)
    out.arguments('"')
    while (char := (yield from peek(source))) and char != quote:
        source.take(1)
        if char == "\\":
            char = yield from _escape(source)
        half = "\ud800" <= char <= "\udfff"  # half of a surrogate pair
        out.arguments(json.dumps(char, ensure_ascii=half)[1:-1])
    source.take(1)
    out.arguments('"')


def _escape(source: Input) -> Generator[None, None, str]:
    char = yield from peek(source)
    source.take(1)
    if char == "\n":
        return ""
    if char not in _HEX:
        return _ESCAPES.get(char, char if char and char in "\\'\"" else "\\" + char)
    digits = yield from word(source, _HEX_DIGIT, _HEX[char])
    try:
        return chr(int(digits, 16))
    except (ValueError, OverflowError):
        return "\\" + char + digits


def _number(text: str) -> str:
    """Return a Python number as JSON."""
    if _JSON_NUMBER.fullmatch(text):
        return text
    try:
        number = int(text) if re.fullmatch(r"[+-]?[0-9_]+", text) else float(text)
        return json.dumps(number, allow_nan=False)
    except ValueError:
        raise _NotPythonError from None


def _skip(source: Input) -> Wait:
    """Skip to the bracket that ends the call."""
    depth = 0
    while char := (yield from peek(source)):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            if depth == 0:
                return
            depth -= 1
        source.take(1)
