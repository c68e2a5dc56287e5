"""Harmony, the format of gpt-oss: messages on channels, each after a header.

<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary
to=functions.get_weather <|constrain|>json<|message|>{…}<|call|>
"""

from __future__ import annotations

import re

from quire.server.tools.call_object import named_arguments
from quire.server.tools.output import Output
from quire.server.tools.stream import Emit, Input, Wait, ignore, space, starts, until

_TO_FUNCTION = re.compile(r"\bto=functions\.([^\s<]+)")
_TO = "to=functions."
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")


def harmony(source: Input, out: Output) -> Wait:
    """`analysis` is reasoning, a message to a function is a call, other messages are content."""
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
