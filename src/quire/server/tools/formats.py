"""Read tool calls in JSON. Each format is described in its models' chat templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence

from quire.server.tools.call_object import HELD, call_object, named_arguments
from quire.server.tools.output import Output
from quire.server.tools.stream import Emit, Input, Wait, peek, rest, space, starts, until

_NAME = re.compile(r"[^\s{\[<]+")
_FENCE = "```json"


def hermes(source: Input, out: Output) -> Wait:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once per call, between texts."""
    end = "</tool_call>"
    while (yield from until(source, ["<tool_call>"], out.content)) is not None:
        wrong = yield from call_object(source, out, ends=[end])
        if wrong is None:
            yield from until(source, [end], ignore)
        else:
            out.content("<tool_call>" + wrong)


def minimax(source: Input, out: Output) -> Wait:
    """`<tool_calls>{"name": …, "arguments": {…}}…</tool_calls>`, or the calls as a list."""
    end = "</tool_calls>"
    while (mark := (yield from until(source, ["<tool_calls>"], out.content))) is not None:
        read = [mark]
        while not (yield from starts(source, end)):
            char = yield from space(source, read.append)
            if char and char in "[,]":
                read.append(source.take(1))
                continue
            if (yield from starts(source, end)):
                break
            wrong = yield from call_object(source, out, ends=[end])
            if wrong is not None:
                out.content("".join(read) + wrong)
                break
            read = []


def granite(source: Input, out: Output) -> Wait:
    """`<|tool_call|>[{…}, …]`, or with the mark `<tool_call>`; nothing follows the list."""
    mark = yield from until(source, ["<|tool_call|>", "<tool_call>"], out.content)
    if mark is not None:
        wrong = yield from _call_list(source, out)
        if wrong is not None:
            out.content(mark + wrong)
        yield from until(source, ["</tool_call>"], out.content)
        yield from rest(source, out.content)


def llama3_json(source: Input, out: Output) -> Wait:
    """`{"name": …, "parameters": {…}}`, alone or after text; several are separated by `;`."""
    while (
        mark := (yield from until(source, ["<|python_tag|>"], out.content, left="{"))
    ) is not None:
        read = [] if mark == "{" else [mark]
        if (yield from space(source, read.append)) == "{":
            wrong = yield from call_object(source, out, bare=False)
            if wrong is None:
                if (yield from space(source)) == ";":
                    source.take(1)
                continue
            read.append(wrong)
        out.content("".join(read))


def mistral(source: Input, out: Output) -> Wait:
    """`[TOOL_CALLS][{…}, …]`, or `[TOOL_CALLS]name{…}` per call, with or without `[ARGS]`."""
    mark = "[TOOL_CALLS]"
    while (yield from until(source, [mark], out.content)) is not None:
        read = [mark]
        if (yield from space(source, read.append)) == "[":
            wrong = yield from _call_list(source, out)
            if wrong is not None:
                out.content("".join(read) + wrong)
            continue
        name = yield from _name(source, read.append)
        if (yield from _mark(source, "[CALL_ID]", read.append)):
            yield from _name(source, read.append)
        yield from _mark(source, "[ARGS]", read.append)
        if name and (yield from space(source, read.append)) == "{":
            wrong = yield from named_arguments(source, out, name, ends=[mark])
            if wrong is None:
                continue
            read.append(wrong)
        out.content("".join(read))


def deepseek_v3(source: Input, out: Output) -> Wait:
    """V3: `function<｜tool▁sep｜>name` and the arguments in a fenced block; V3.1: `name<sep>{…}`.

    `<｜tool▁call▁begin｜>` and `<｜tool▁call▁end｜>` enclose each call, `<｜tool▁calls▁…｜>` all.
    """
    end = "<｜tool▁call▁end｜>"

    def call(read: list[str]) -> Generator[None, None, bool]:
        first: list[str] = []
        if (yield from _until(source, ["<｜tool▁sep｜>", end], first, read)) != "<｜tool▁sep｜>":
            return False
        name = "".join(first).strip()
        if (yield from space(source, read.append)) != "{":
            line: list[str] = []
            if (yield from _until(source, [_FENCE], line, read, left=[end])) == _FENCE:
                name = "".join(line).strip()
        wrong = yield from named_arguments(source, out, name, ends=[end])
        read.append(wrong or "")
        return wrong is None

    yield from _section(source, out, "<｜tool▁call▁begin｜>", _DEEPSEEK, call)


def kimi_k2(source: Input, out: Output) -> Wait:
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`.

    One pair of marks encloses all calls. The text before the arguments is also the call's id.
    """
    argument, end = "<|tool_call_argument_begin|>", "<|tool_call_end|>"

    def call(read: list[str]) -> Generator[None, None, bool]:
        parts: list[str] = []
        if (yield from _until(source, [argument, end], parts, read)) != argument:
            return False
        call_id = "".join(parts).strip()
        name = call_id.removeprefix("functions.")
        name = name.rpartition(":")[0] or name
        wrong = yield from named_arguments(source, out, name, ends=[end], call_id=call_id)
        read.append(wrong or "")
        return wrong is None

    yield from _section(source, out, "<|tool_call_begin|>", _KIMI, call)


_DEEPSEEK = {"<｜tool▁calls▁begin｜>": "<｜tool▁calls▁end｜>"}
_KIMI = {
    "<|tool_calls_section_begin|>": "<|tool_calls_section_end|>",
    "<|tool_call_section_begin|>": "<|tool_call_section_end|>",
}


def _section(
    source: Input,
    out: Output,
    begin: str,
    sections: dict[str, str],
    call: Callable[[list[str]], Generator[None, None, bool]],
) -> Wait:
    """Read the calls between two marks, each after `begin`; other text is content.

    Args:
        sections: mark before the calls → mark after them.
        call: reads one call and returns whether it is one; if not, its argument gets the text read.
    """
    while (mark := (yield from until(source, [*sections], out.content))) is not None:
        end, read = sections[mark], [mark]
        lost = False
        while True:
            emit = out.content if lost else read.append
            found = yield from until(source, [begin, end], emit)
            if found != begin:
                break
            read.append(begin)
            lost = not (yield from call(read))
            if lost:
                out.content("".join(read))
            read = []
        if mark in read:
            out.content("".join(read) + (found or ""))


def _until(
    source: Input,
    tags: Sequence[str],
    found: list[str],
    read: list[str],
    *,
    left: Sequence[str] = (),
) -> Generator[None, None, str | None]:
    """Read up to the first tag; return the tag, which is `read`, and add the text before it to
    `found`.
    """
    tag = yield from until(source, tags, found.append, left=left)
    read += found
    if tag is not None and tag not in left:
        read.append(tag)
    return tag


def required(source: Input, out: Output) -> Wait:
    """`[{"name": …, "parameters": {…}}, …]`: the form that `tool_choice` "required" enforces."""
    wrong = yield from _call_list(source, out, held=0)
    if wrong is not None:
        out.content(wrong)
    yield from rest(source, out.content)


def _call_list(source: Input, out: Output, held: int = HELD) -> Generator[None, None, str | None]:
    """Read `[{…}, …]`; return None, or the text read since the last call if it is no such list."""
    if (yield from space(source)) != "[":
        return ""
    read = source.take(1)
    while (char := (yield from space(source))) and char != "]":
        if char == ",":
            source.take(1)
            continue
        wrong = yield from call_object(source, out, held=held)
        if wrong is not None:
            return read + wrong
        read = ""
    source.take(1)
    return None


def _name(source: Input, emit: Emit) -> Generator[None, None, str]:
    """Read a function's name, up to a bracket or white space."""
    name: list[str] = []
    while (char := (yield from peek(source))) and _NAME.match(char):
        name.append(source.take(1))
        emit(char)
    return "".join(name)


def _mark(source: Input, mark: str, emit: Emit) -> Generator[None, None, bool]:
    """Read a mark if it follows in the input; return whether it does."""
    found = yield from starts(source, mark)
    if found:
        emit(mark)
    return found


def ignore(text: str) -> None:
    """Drop text between marks that has no meaning."""
