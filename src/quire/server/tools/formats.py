"""Read tool calls in JSON, in the formats of the models' chat templates; and harmony's messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence

from quire.server.tools.call_object import HELD, call_object, named_arguments
from quire.server.tools.output import Output
from quire.server.tools.stream import Emit, Input, Wait, ignore, rest, space, starts, until, word

_NAME = re.compile(r"[^\s{\[<]")
_FENCE = "```json"


def hermes(source: Input, out: Output) -> Wait:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once per call, between texts."""
    end = "</tool_call>"
    while (mark := (yield from until(source, ["<tool_call>"], out.content))) is not None:
        source.hold(mark)
        if (yield from call_object(source, out, ends=[end])):
            yield from until(source, [end], ignore)
        else:
            out.content(source.release())


def minimax(source: Input, out: Output) -> Wait:
    """`<tool_calls>{"name": …, "arguments": {…}}…</tool_calls>`, or the calls as a list."""
    end = "</tool_calls>"
    while (mark := (yield from until(source, ["<tool_calls>"], out.content))) is not None:
        source.hold(mark)
        while not (yield from starts(source, end)):
            char = yield from space(source)
            if char and char in "[,]":
                source.take(1)
                continue
            if (yield from starts(source, end)):
                break
            if not (yield from call_object(source, out, ends=[end])):
                out.content(source.release())
                break
            source.hold()
        source.release()


def granite(source: Input, out: Output) -> Wait:
    """`<|tool_call|>[{…}, …]`, or with the mark `<tool_call>`; nothing follows the list."""
    mark = yield from until(source, ["<|tool_call|>", "<tool_call>"], out.content)
    if mark is not None:
        yield from _call_list(source, out, mark)
        yield from until(source, ["</tool_call>"], out.content)
        yield from rest(source, out.content)


def llama3_json(source: Input, out: Output) -> Wait:
    """`{"name": …, "parameters": {…}}`, alone or after text; several are separated by `;`."""
    while (
        mark := (yield from until(source, ["<|python_tag|>"], out.content, left="{"))
    ) is not None:
        source.hold("" if mark == "{" else mark)
        is_object = (yield from space(source)) == "{"
        if is_object and (yield from call_object(source, out, bare=False)):
            if (yield from space(source)) == ";":
                source.take(1)
        else:
            out.content(source.release())


def mistral(source: Input, out: Output) -> Wait:
    """`[TOOL_CALLS][{…}, …]`, or `[TOOL_CALLS]name{…}` per call, with or without `[ARGS]`."""
    mark = "[TOOL_CALLS]"
    while (yield from until(source, [mark], out.content)) is not None:
        source.hold(mark)
        if (yield from space(source)) == "[":
            yield from _call_list(source, out, source.release())
            continue
        name = yield from word(source, _NAME)
        if (yield from starts(source, "[CALL_ID]")):
            yield from word(source, _NAME)
        yield from starts(source, "[ARGS]")
        has_object = name and (yield from space(source)) == "{"
        if not (has_object and (yield from named_arguments(source, out, name, ends=[mark]))):
            out.content(source.release())


def deepseek_v3(source: Input, out: Output) -> Wait:
    """V3: `function<｜tool▁sep｜>name` and the arguments in a fenced block; V3.1: `name<sep>{…}`.

    `<｜tool▁call▁begin｜>` and `<｜tool▁call▁end｜>` enclose each call, `<｜tool▁calls▁…｜>` all.
    """
    separator, end = "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

    def call() -> Generator[None, None, bool]:
        name, tag = yield from _before(source, [separator, end])
        if tag != separator:
            return False
        if (yield from space(source)) != "{":
            line, tag = yield from _before(source, [_FENCE], left=[end])
            name = line if tag == _FENCE else name
        return (yield from named_arguments(source, out, name, ends=[end]))

    yield from _section(source, out, "<｜tool▁call▁begin｜>", _DEEPSEEK, call)


def kimi_k2(source: Input, out: Output) -> Wait:
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`.

    One pair of marks encloses all calls. The text before the arguments is also the call's id.
    """
    argument, end = "<|tool_call_argument_begin|>", "<|tool_call_end|>"

    def call() -> Generator[None, None, bool]:
        call_id, tag = yield from _before(source, [argument, end])
        if tag != argument:
            return False
        name = call_id.removeprefix("functions.")
        name = name.rpartition(":")[0] or name
        return (yield from named_arguments(source, out, name, ends=[end], call_id=call_id))

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
    call: Callable[[], Generator[None, None, bool]],
) -> Wait:
    """Read the calls between two marks, each after `begin`; other text is content.

    Args:
        sections: mark before the calls → mark after them.
        call: reads one call and returns whether it is one.
    """
    while (mark := (yield from until(source, [*sections], out.content))) is not None:
        source.hold(mark)
        tags, emit, empty = [begin, sections[mark]], ignore, True
        while (yield from until(source, tags, emit)) == begin:
            empty = False
            if emit is not ignore:
                source.hold(begin)
            if (yield from call()):
                source.hold()
                emit = ignore
            else:
                out.content(source.release())
                emit = out.content
        held = source.release()
        if empty:
            out.content(held)


def _before(
    source: Input, tags: Sequence[str], *, left: Sequence[str] = ()
) -> Generator[None, None, tuple[str, str | None]]:
    """Read up to the first tag; return the text before it, stripped, and the tag."""
    text: list[str] = []
    tag = yield from until(source, tags, text.append, left=left)
    return "".join(text).strip(), tag


def required(source: Input, out: Output) -> Wait:
    """`[{"name": …, "parameters": {…}}, …]`: the form that `tool_choice` "required" enforces.

    A call that is cut off before its arguments is dropped.
    """
    yield from _call_list(source, out, held=0, other=ignore)
    yield from rest(source, out.content)


def _call_list(
    source: Input, out: Output, mark: str = "", held: int = HELD, other: Emit | None = None
) -> Wait:
    """Read `[{…}, …]` behind `mark`; what is no such list is content.

    Args:
        other: receives the text in a list that is no call; None makes it content.
    """
    source.hold(mark)
    if (yield from space(source)) == "[":
        source.take(1)
        while (char := (yield from space(source))) and char != "]":
            if char == ",":
                source.take(1)
            elif (yield from call_object(source, out, held=held)):
                source.hold()
            else:
                (other or out.content)(source.release())
                return
        source.take(1)
        source.release()
    out.content(source.release())


_TO_FUNCTION = re.compile(r"\bto=functions\.([^\s<]+)")
_TO = "to=functions."
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")


def harmony(source: Input, out: Output) -> Wait:
    """Read gpt-oss's messages on channels, each after a header.

        <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary
        to=functions.get_weather <|constrain|>json<|message|>{…}<|call|>

    `analysis` is reasoning, a message to a function is a call, other messages are content.
    """
    role: list[str] = []
    emit: Emit = role.append
    source.hold()
    yield from space(source)
    spaces = source.release()
    if (yield from starts(source, _TO)):  # the prompt ends inside the first header
        role.append(_TO)
    else:
        out.content(spaces)
        emit = out.content  # text without a header
    while (yield from until(source, ["<|channel|>"], emit)) is not None:
        header: list[str] = []
        if (yield from until(source, ["<|message|>"], header.append)) is None:
            return
        to = _TO_FUNCTION.search("".join([*role, " ", *header]))
        if to is not None:
            source.hold()
            called = yield from named_arguments(source, out, to[1], ends=_ENDS)
            out.content(source.release())
            yield from until(source, _ENDS, ignore if called else out.content)
        else:
            analysis = "".join(header).strip().startswith("analysis")
            yield from until(source, _ENDS, out.reasoning if analysis else out.content)
        role.clear()
        emit = role.append
