"""Read calls written between tags, with one tag per argument: see `text/markup`.

Models forget to close tags. So a value also ends at the next tag, and a call at the next call or at
the end of the enclosing mark.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Generator, Sequence

from quire.server.tools.call_object import MAX_NAME
from quire.server.tools.output import Output
from quire.server.tools.stream import Input, Wait, goes_on, ignore, space, starts, until, word
from quire.text.json_types import ALL, type_of
from quire.text.markup import Markup

_IN_NAME = re.compile(r"[^\s<>{}\[\]]")
_QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")
_STRING = re.compile(r"\bstring=[\"'](true|false)")
_TEXT = frozenset({"string"})


def markup(tags: Markup) -> Callable[[Input, Output], Wait]:
    """Return the rule of a format.

    A value is text unless it parses as JSON, is not a string, and has a type that the function's
    schema allows.
    """
    begins = [*tags.blocks, *([tags.function] if tags.bare else ())]

    def read(source: Input, out: Output) -> Wait:
        while (mark := (yield from until(source, begins, out.content))) is not None:
            source.hold(mark)
            begun, called = mark == tags.function, False
            while name := (yield from _name(source, tags, begun)):
                out.call(name)
                yield from _arguments(source, out, name, tags)
                source.hold()
                begun, called = False, True
                if not tags.function:
                    break
            ended = called and (yield from _first(source, [*tags.blocks.values()]))
            held = source.release()
            if ended:
                source.take(len(ended))
            else:
                out.content(held)

    return read


def _name(source: Input, tags: Markup, begun: bool) -> Generator[None, None, str | None]:
    """Read the next function tag and return its name; None if it is another tag."""
    if not begun:
        yield from space(source)
        if not (yield from starts(source, tags.function)):
            return None
    name = _unquoted((yield from word(source, _IN_NAME, MAX_NAME + 1)))
    if not name or len(name) > MAX_NAME:
        return None
    if tags.function:
        return name if (yield from starts(source, tags.name_end)) else None
    yield from space(source)
    return name if (yield from _first(source, [tags.parameter, tags.function_end])) else None


def _arguments(source: Input, out: Output, name: str, tags: Markup) -> Wait:
    """Read the parameters of a function, to its end."""
    types = out.types.get(name, {})
    own = [tags.parameter, tags.function_end]
    around = [*tags.blocks, *tags.blocks.values(), tags.function]
    left = [mark for mark in around if mark and mark not in own]
    begin, ended = "{", False
    while not ended and (yield from until(source, own, ignore, left=left)) == tags.parameter:
        head: list[str] = []
        yield from until(source, [tags.name_end], head.append, left=["\n"])
        if tags.value:
            yield from space(source)
            yield from starts(source, tags.value)
        text, ended = yield from _value(source, tags)
        key = _unquoted("".join(head))
        allowed = types.get(key, ALL)
        if tags.says_type and (said := _STRING.search("".join(head))):
            allowed = _TEXT if said[1] == "true" else ALL - _TEXT
        out.arguments(f"{begin}{json.dumps(key)}: {_json(text, allowed)}")
        begin = ", "
    out.arguments("{}" if begin == "{" else "}")
    yield from space(source)


def _value(source: Input, tags: Markup) -> Generator[None, None, tuple[str, bool]]:
    """Read a parameter; return its text, and whether its function has ended, too."""
    parts: list[str] = []
    ends = [*tags.blocks.values()]
    behind = [mark for mark in (*ends, *tags.blocks, tags.function) if mark]
    own = [tags.parameter_end, *([] if tags.function_end in ends else [tags.function_end])]
    while True:
        tag = yield from until(source, own, parts.append, left=[tags.parameter, *ends])
        if tag != tags.function_end or tag in ends:
            break
        spaces: list[str] = []
        yield from space(source, spaces.append)
        if not source.peek() or (yield from _first(source, behind)):
            return _trimmed("".join(parts), tags, closed=False), True
        parts += [tag, *spaces]  # the value itself contains the tag
    return _trimmed("".join(parts), tags, closed=tag == tags.parameter_end), False


def _trimmed(text: str, tags: Markup, *, closed: bool) -> str:
    """Return a value without the format's newlines around it."""
    if not closed:
        text = text.removesuffix("\n")
        return text if tags.newlines == "none" else text.removeprefix("\n")
    if tags.newlines == "each":
        return text.removeprefix("\n").removesuffix("\n")
    both = tags.newlines == "both" and len(text) > 1 and text[0] == text[-1] == "\n"
    return text[1:-1] if both else text


def _first(source: Input, marks: Sequence[str]) -> Generator[None, None, str | None]:
    """Return the mark that follows in the input."""
    for mark in marks:
        if (yield from goes_on(source, mark)):
            return mark
    return None


def _unquoted(text: str) -> str:
    """Return a name without quotes, and without text after them."""
    found = _QUOTED.match(text.strip())
    return (found[1] or found[2] or "") if found else text.strip()


def _json(text: str, types: frozenset[str]) -> str:
    """Return a parameter as JSON of one of `types`, else as a JSON string."""
    try:
        found = json.loads(text, parse_float=_finite, parse_constant=_finite)
        written = json.dumps(found, ensure_ascii=False)
    except (ValueError, RecursionError):
        if not types & _TEXT and _is_json(text):
            return text.strip()  # it has a number beyond a double
        found, written = text, ""
    kind = type_of(found)
    wrong = isinstance(found, str) or ("string" in types and kind not in types)
    return json.dumps(text, ensure_ascii=False) if wrong else written


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_finite)
    except (ValueError, RecursionError):
        return False
    return True


def _finite(written: str) -> float:
    """Return a number; raise `ValueError` for NaN and infinity, which JSON lacks."""
    number = float(written)
    if not math.isfinite(number):
        raise ValueError(written)
    return number
