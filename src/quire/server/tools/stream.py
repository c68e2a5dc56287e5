"""Text that arrives in pieces, and what is read of it.

A format is a generator that reads from an `Input` and writes to an `Output`. It yields where it
needs more text, and is written as if all of it were there. Each primitive decides by characters
alone, never by where a piece ends; so any cut of a text gives the same, and in time proportional
to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from quire.core.outputs import PositionLogprobs

Emit = Callable[[str], None]
Wait = Generator[None, None, None]

MAX_NAME = 256
"""Characters of a function's name or a key; what is longer is none."""

_SPACE = " \t\n\r"
_STRING_PART = re.compile(r'[^"\\]+')
_ATOM_END = re.compile(r"[\s,:\[\]{}\"]")
_STRUCTURE = re.compile(r'["{}\[\]]')


class Input:
    """What has come and is not read yet."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._begin = 0
        self.ended = False

    def __len__(self) -> int:
        return len(self._text) - self._at

    @property
    def position(self) -> int:
        """Characters that were read, from the beginning."""
        return self._begin + self._at

    def add(self, text: str) -> None:
        self._begin += self._at
        self._text = self._text[self._at :] + text
        self._at = 0

    def peek(self) -> str:
        """The next character; empty where there is none (yet)."""
        return self._text[self._at : self._at + 1]

    def last(self, count: int) -> str:
        """The last characters, `count` of them at most."""
        return self._text[max(self._at, len(self._text) - count) :]

    def begins(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def take(self, count: int) -> str:
        """The next characters, `count` of them at most."""
        start = self._at
        self._at = min(start + count, len(self._text))
        return self._text[start : self._at]

    def take_all(self) -> str:
        return self.take(len(self))

    def take_to(self, position: int) -> str:
        """Take what is before a position that `find` gave."""
        return self.take(position - self._at)

    def take_match(self, pattern: re.Pattern[str]) -> str:
        """Take what the pattern matches here; empty where it does not."""
        found = pattern.match(self._text, self._at)
        return self.take(len(found[0])) if found else ""

    def find(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        return pattern.search(self._text, self._at)


@dataclass(slots=True)
class CallDelta:
    """What a piece of text added to a tool call; `name` the first time only."""

    index: int
    name: str | None = None
    arguments: str = ""


Span = tuple[int, int]
"""Of the text that was read: from a character to one behind its last."""


@dataclass(slots=True)
class TextDelta:
    """More of the content, or of the reasoning.

    Attributes:
        spans: where it was read, in order.
        logprobs: those of its tokens, where they are asked for.
    """

    kind: Literal["content", "reasoning"]
    text: str
    spans: list[Span] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)


@dataclass(slots=True)
class Delta:
    """What a piece of text added, in the order in which it was written.

    No two neighbours are of one text, or of one call.
    """

    parts: list[TextDelta | CallDelta] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.parts)

    def add(self, part: TextDelta | CallDelta) -> None:
        """One part more, or more of the last one."""
        last = self.parts[-1] if self.parts else None
        if isinstance(part, TextDelta):
            if isinstance(last, TextDelta) and last.kind == part.kind:
                last.text += part.text
                last.spans += part.spans
                last.logprobs += part.logprobs
            elif part.text or part.logprobs:
                self.parts.append(part)
        elif isinstance(last, CallDelta) and part.name is None:
            last.arguments += part.arguments
        else:
            self.parts.append(part)

    @property
    def content(self) -> str:
        return self._text("content")

    @property
    def reasoning(self) -> str:
        return self._text("reasoning")

    @property
    def logprobs(self) -> list[PositionLogprobs]:
        """Of the content's tokens."""
        texts = (part for part in self.parts if isinstance(part, TextDelta))
        return [one for part in texts if part.kind == "content" for one in part.logprobs]

    @property
    def calls(self) -> list[CallDelta]:
        return [part for part in self.parts if isinstance(part, CallDelta)]

    def _text(self, kind: str) -> str:
        texts = (part for part in self.parts if isinstance(part, TextDelta))
        return "".join(part.text for part in texts if part.kind == kind)


class _Trimmed:
    """Text whose white space at the end is held back until more comes."""

    def __init__(self, kind: Literal["content", "reasoning"]) -> None:
        self._kind: Literal["content", "reasoning"] = kind
        self._begun = False
        self._space: list[tuple[str, int]] = []

    def push(self, text: str, begin: int, *, strip: bool) -> TextDelta | None:
        """What may be shown of a text that was read from `begin` on, and of what was held back;
        `strip` drops white space at the very beginning."""
        kept = text.rstrip()
        if not kept:
            self._space.append((text, begin))
            return None
        end = begin + len(kept)
        if strip and not self._begun:
            stripped = kept.lstrip()
            shown = [(stripped, end - len(stripped))]
        else:
            shown = [*self._space, (kept, begin)]
        self._space = [(text[len(kept) :], end)]
        self._begun = True
        return self._delta(shown)

    def drop(self) -> TextDelta:
        """Forget the white space held back, which is returned, and begin anew."""
        held, self._space, self._begun = self._space, [], False
        return self._delta(held)

    def _delta(self, pieces: list[tuple[str, int]]) -> TextDelta:
        text = "".join(piece for piece, _ in pieces)
        return TextDelta(self._kind, text, [(at, at + len(piece)) for piece, at in pieces if piece])


ValueTypes = Mapping[str, Mapping[str, frozenset[str]]]
"""Function → parameter → the JSON types that it may have, where the request says so."""


class Output:
    """What has been read. White space beside calls, or around reasoning, is no content.

    Text is told of when the last of it has just been read from `source`.
    """

    def __init__(self, source: Input, types: ValueTypes | None = None) -> None:
        self.types = types or {}
        self.num_calls = 0
        self._source = source
        self._new = Delta()
        self._content = _Trimmed("content")
        self._reasoning = _Trimmed("reasoning")
        self._reasoned = False

    def content(self, text: str) -> None:
        begin = self._source.position - len(text)
        shown = self._content.push(text, begin, strip=self._reasoned or self.num_calls > 0)
        if shown:
            self._reasoning.drop()
            self._new.add(shown)

    def reasoning(self, text: str) -> None:
        self._reasoned = True
        shown = self._reasoning.push(text, self._source.position - len(text), strip=True)
        if shown:
            self._content.drop()
            self._new.add(shown)

    def call(self, name: str) -> None:
        """Begin a tool call."""
        self._content.drop()
        self._reasoning.drop()
        self._new.add(CallDelta(self.num_calls, name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """More of the arguments of the call begun last."""
        if text:
            self._new.add(CallDelta(self.num_calls - 1, arguments=text))

    def end(self) -> None:
        """No more comes."""
        held = self._content.drop()
        if not self.num_calls and not self._reasoned:
            self._new.add(held)

    def take(self) -> Delta:
        """What is new."""
        new, self._new = self._new, Delta()
        return new


def until(source: Input, tags: Sequence[str], emit: Emit) -> Generator[None, None, str | None]:
    """Emit the text before the first of `tags`, and take that; None where the text ends first.

    No tag begins with another. What may yet become one is held back.
    """
    pattern = re.compile("|".join(map(re.escape, tags)))
    longest = max(map(len, tags))
    while True:
        if (found := source.find(pattern)) is not None:
            emit(source.take_to(found.start()))
            return source.take(len(found[0]))
        tail = "" if source.ended else source.last(longest - 1)
        begun = (n for n in range(len(tail), 0, -1) if any(t.startswith(tail[-n:]) for t in tags))
        emit(source.take(len(source) - next(begun, 0)))
        if source.ended:
            return None
        yield


def rest(source: Input, emit: Emit) -> Wait:
    """Emit all that comes."""
    while len(source) or not source.ended:
        emit(source.take_all())
        if not source.ended:
            yield


def peek(source: Input) -> Generator[None, None, str]:
    """The next character; empty at the end."""
    while not len(source) and not source.ended:
        yield
    return source.peek()


def space(source: Input, emit: Emit | None = None) -> Generator[None, None, str]:
    """Take white space; the character behind it."""
    while (char := (yield from peek(source))) and char in _SPACE:
        taken = source.take(1)
        if emit is not None:
            emit(taken)
    return char


def starts(source: Input, text: str) -> Generator[None, None, bool]:
    """Whether the input goes on with `text`, which is taken if so."""
    while len(source) < len(text) and text.startswith(source.last(len(text))) and not source.ended:
        yield
    if not source.begins(text):
        return False
    source.take(len(text))
    return True


def string(source: Input, emit: Emit) -> Generator[None, None, bool]:
    """Emit a JSON string as it is written, quotes included; False where the text ends first."""
    emit(source.take(1))
    while char := (yield from peek(source)):
        if char == '"':
            emit(source.take(1))
            return True
        if char == "\\":
            while len(source) < 2 and not source.ended:
                yield
            emit(source.take(2))
        else:
            emit(source.take_match(_STRING_PART))
    return False


def value(source: Input, emit: Emit) -> Generator[None, None, bool]:
    """Emit one JSON value as it is written; False where there is none, or the text ends first.

    Brackets are counted, and strings are skipped; what is between them is the client's to judge.
    """
    char = yield from space(source, emit)
    if char == '"':
        return (yield from string(source, emit))
    if char not in ("{", "["):
        return (yield from _atom(source, emit))
    open_brackets: list[str] = []
    while char := (yield from peek(source)):
        if char == '"':
            if not (yield from string(source, emit)):
                return False
            continue
        if char in "{[":
            open_brackets.append("}" if char == "{" else "]")
        elif char in "}]":
            if open_brackets.pop() != char:
                return False
        else:
            found = source.find(_STRUCTURE)
            emit(source.take_to(found.start()) if found else source.take_all())
            continue
        emit(source.take(1))
        if not open_brackets:
            return True
    return False


def _atom(source: Input, emit: Emit) -> Generator[None, None, bool]:
    """A number, true, false or null."""
    size = 0
    while (char := (yield from peek(source))) and not _ATOM_END.match(char):
        emit(source.take(1))
        size += 1
    return size > 0


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
