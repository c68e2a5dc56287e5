"""How models write tool calls. Each format is what is said in the model's chat template."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator

from quire.server.tools.call_object import arguments, call_object
from quire.server.tools.output import Output
from quire.server.tools.stream import Input, Wait, peek, rest, space, starts, until
from quire.text.json_types import ALL, type_of

_NAME = re.compile(r"[^\s{\[<]+")


def hermes(source: Input, out: Output) -> Wait:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once a call, between texts."""
    while (yield from until(source, ["<tool_call>"], out.content)) is not None:
        wrong = yield from call_object(source, out)
        if wrong is None:
            yield from until(source, ["</tool_call>"], _nothing)
        else:
            out.content("<tool_call>" + wrong)


def granite(source: Input, out: Output) -> Wait:
    """`<|tool_call|>[{…}, …]`, or `<tool_call>` for the mark, and nothing behind the list."""
    mark = yield from until(source, ["<|tool_call|>", "<tool_call>"], out.content)
    if mark is not None:
        wrong = yield from _call_list(source, out)
        if wrong is not None:
            out.content(mark + wrong)
        yield from until(source, ["</tool_call>"], out.content)
        yield from rest(source, out.content)


def llama3_json(source: Input, out: Output) -> Wait:
    """The whole text is `{"name": …, "parameters": {…}}`, or several with `;` between them."""
    read: list[str] = []
    yield from space(source, read.append)
    if (yield from starts(source, "<|python_tag|>")):
        read.append("<|python_tag|>")
    while (yield from space(source, read.append)) == "{":
        wrong = yield from call_object(source, out)
        if wrong is not None:
            read.append(wrong)
            break
        read = []
        if (yield from space(source)) == ";":
            source.take(1)
    out.content("".join(read))
    yield from rest(source, out.content)


def mistral(source: Input, out: Output) -> Wait:
    """`[TOOL_CALLS][{…}, …]`, or `[TOOL_CALLS]name{…}`, with or without `[ARGS]`, once a call."""
    mark = "[TOOL_CALLS]"
    while (yield from until(source, [mark], out.content)) is not None:
        spaces: list[str] = []
        if (yield from space(source, spaces.append)) == "[":
            wrong = yield from _call_list(source, out)
            if wrong is not None:
                out.content("".join([mark, *spaces, wrong]))
            continue
        name = yield from _name(source)
        if (yield from starts(source, "[CALL_ID]")):
            yield from _name(source)
        yield from starts(source, "[ARGS]")
        if name and (yield from space(source)) == "{":
            out.call(name)
            yield from arguments(source, out)
        else:
            out.content("".join([mark, *spaces, name]))


def deepseek_v3(source: Input, out: Output) -> Wait:
    """V3: `function<｜tool▁sep｜>name` and the arguments in a fenced block; V3.1: `name<sep>{…}`.

    Each between `<｜tool▁call▁begin｜>` and `<｜tool▁call▁end｜>`, all in one such pair of marks.
    """
    begin, end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    if (yield from until(source, ["<｜tool▁calls▁begin｜>"], out.content)) is None:
        return
    while (yield from until(source, [begin, "<｜tool▁calls▁end｜>"], _nothing)) == begin:
        first: list[str] = []
        if (yield from until(source, ["<｜tool▁sep｜>", end], first.append)) == end:
            continue
        name = "".join(first).strip()
        if (yield from space(source)) != "{":
            line: list[str] = []
            yield from until(source, ["```json", end], line.append)
            name = "".join(line).strip() or name
        out.call(name)
        yield from arguments(source, out)
    yield from rest(source, out.content)


def qwen3_coder(source: Input, out: Output) -> Wait:
    """`<tool_call><function=name><parameter=key>value</parameter>…</function></tool_call>`.

    A value is JSON where it reads as such, is no text, and of a type that the function's schema
    allows; else it is text.
    """
    while (yield from until(source, ["<tool_call>", "<function="], out.content)) is not None:
        yield from space(source)
        yield from starts(source, "<function=")
        name: list[str] = []
        if (yield from until(source, [">"], name.append)) is None:
            out.content("<function=" + "".join(name))
            return
        function = "".join(name).strip()
        out.call(function)
        types = out.types.get(function, {})
        begin = "{"
        while (yield from until(source, ["<parameter=", "</function>"], _nothing)) == "<parameter=":
            key: list[str] = []
            parts: list[str] = []
            yield from until(source, [">"], key.append)
            yield from until(source, ["</parameter>"], parts.append)
            named = "".join(key).strip()
            written = _xml_value("".join(parts), types.get(named, ALL))
            out.arguments(f"{begin}{json.dumps(named)}: {written}")
            begin = ", "
        out.arguments("{}" if begin == "{" else "}")
        yield from space(source)
        yield from starts(source, "</tool_call>")


def required(source: Input, out: Output) -> Wait:
    """`[{"name": …, "parameters": {…}}, …]`: what `tool_choice` "required" has been held to."""
    wrong = yield from _call_list(source, out)
    if wrong is not None:
        out.content(wrong)
    yield from rest(source, out.content)


def _call_list(source: Input, out: Output) -> Generator[None, None, str | None]:
    """Read `[{…}, …]`; None, or what was read from where it is no list of calls."""
    if (yield from space(source)) != "[":
        return ""
    read = source.take(1)
    while (char := (yield from space(source))) and char != "]":
        if char == ",":
            source.take(1)
            continue
        wrong = yield from call_object(source, out)
        if wrong is not None:
            return read + wrong
        read = ""
    source.take(1)
    return None


def _name(source: Input) -> Generator[None, None, str]:
    """A function's name, up to a bracket or white space."""
    name: list[str] = []
    while (char := (yield from peek(source))) and _NAME.match(char):
        name.append(source.take(1))
    return "".join(name)


def _xml_value(text: str, types: frozenset[str]) -> str:
    """A parameter's text as JSON of one of `types`; where it is none, the text."""
    text = text.removeprefix("\n").removesuffix("\n")
    try:
        found = json.loads(text, parse_float=_finite, parse_constant=_finite)
        written = json.dumps(found, ensure_ascii=False)
    except (ValueError, RecursionError):
        found, written = text, ""
    kind = type_of(found)
    wrong = isinstance(found, str) or ("string" in types and kind not in types)
    return json.dumps(text, ensure_ascii=False) if wrong else written


def _finite(written: str) -> float:
    """Raises `ValueError` for NaN, and for what is beyond a double: JSON has no such number."""
    number = float(written)
    if not math.isfinite(number):
        raise ValueError(written)
    return number


def _nothing(text: str) -> None:
    """What stands between marks and means nothing."""
