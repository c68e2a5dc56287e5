"""Text that arrives in pieces, and the primitives that read it.

A format is a generator that reads from an `Input` and writes to an `Output` (output.py). It yields
when it needs more text. Each primitive decides by characters only, never by the end of a piece. So
every split of a text gives the same result, in time linear in its length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import Literal

Emit = Callable[[str], None]
Wait = Generator[None, None, None]

_SPACE = " \t\n\r"
_STRING_PART = re.compile(r'[^"\\\x00-\x1f]+')
_HEX = re.compile(r"[0-9a-fA-F]")
_ATOM_END = re.compile(r"[\s,:\[\]{}\"]")
_ATOM = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null|NaN|-?Infinity")
MAX_ATOM = 512
"""Most characters of a number."""


class Input:
    """Text that has arrived and is not read yet."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._begin = 0
        self._held: list[str] | None = None
        self.ended = False

    def __len__(self) -> int:
        return len(self._text) - self._at

    @property
    def position(self) -> int:
        """Return the number of characters read so far."""
        return self._begin + self._at

    def add(self, text: str) -> None:
        self._begin += self._at
        self._text = self._text[self._at :] + text
        self._at = 0

    def peek(self) -> str:
        """Return the next character; empty if there is none (yet)."""
        return self._text[self._at : self._at + 1]

    def last(self, count: int) -> str:
        """Return at most `count` of the last characters."""
        return self._text[max(self._at, len(self._text) - count) :]

    def begins(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def take(self, count: int) -> str:
        """Take at most `count` characters."""
        start = self._at
        self._at = min(start + count, len(self._text))
        taken = self._text[start : self._at]
        if self._held is not None:
            self._held.append(taken)
        return taken

    def hold(self, text: str = "") -> None:
        """Keep `text`, the last one taken, and all text taken from now on. It may be no call."""
        self._held = [text]

    def release(self) -> str:
        """Return the text since `hold`, and keep no more."""
        held, self._held = self._held, None
        return "".join(held or ())

    def take_all(self) -> str:
        return self.take(len(self))

    def take_to(self, position: int) -> str:
        """Take the text before a position that `find` returned."""
        return self.take(position - self._at)

    def take_match(self, pattern: re.Pattern[str]) -> str:
        """Take the text that the pattern matches here; empty if it does not match."""
        found = pattern.match(self._text, self._at)
        return self.take(len(found[0])) if found else ""

    def is_only(self, pattern: re.Pattern[str]) -> bool:
        """Return whether the pattern matches all that has arrived."""
        return pattern.fullmatch(self._text, self._at) is not None

    def find(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        return pattern.search(self._text, self._at)


def until(
    source: Input, tags: Sequence[str], emit: Emit, *, left: Sequence[str] = ()
) -> Generator[None, None, str | None]:
    """Emit the text before the first tag, and take that tag; None if the text ends first.

    No tag may begin with another. Text that may still become a tag is held back.

    Args:
        left: tags that end the text, too, but are not taken.
    """
    tags = (*tags, *left)
    pattern = re.compile("|".join(map(re.escape, tags)))
    longest = max(map(len, tags))
    while True:
        if (found := source.find(pattern)) is not None:
            emit(source.take_to(found.start()))
            return found[0] if found[0] in left else source.take(len(found[0]))
        tail = "" if source.ended else source.last(longest - 1)
        begun = (n for n in range(len(tail), 0, -1) if any(t.startswith(tail[-n:]) for t in tags))
        emit(source.take(len(source) - next(begun, 0)))
        if source.ended:
            return None
        yield


def ignore(text: str) -> None:
    """Drop text that has no meaning."""


def rest(source: Input, emit: Emit) -> Wait:
    """Emit the rest of the text."""
    while len(source) or not source.ended:
        emit(source.take_all())
        if not source.ended:
            yield


def peek(source: Input) -> Generator[None, None, str]:
    """Return the next character; empty at the end."""
    while not len(source) and not source.ended:
        yield
    return source.peek()


def space(source: Input, emit: Emit | None = None) -> Generator[None, None, str]:
    """Take white space, and return the next character."""
    while (char := (yield from peek(source))) and char in _SPACE:
        taken = source.take(1)
        if emit is not None:
            emit(taken)
    return char


def word(
    source: Input, pattern: re.Pattern[str], most: int | None = None
) -> Generator[None, None, str]:
    """Take at most `most` characters, as long as each matches the pattern."""
    taken: list[str] = []
    while len(taken) != most and (char := (yield from peek(source))) and pattern.match(char):
        taken.append(source.take(1))
    return "".join(taken)


def goes_on(source: Input, text: str) -> Generator[None, None, bool]:
    """Return whether the input continues with `text`."""
    while len(source) < len(text) and text.startswith(source.last(len(text))) and not source.ended:
        yield
    return source.begins(text)


def starts(source: Input, text: str) -> Generator[None, None, bool]:
    """Read `text` if the input continues with it; return whether it does."""
    found = yield from goes_on(source, text)
    if found:
        source.take(len(text))
    return found


def string(source: Input, emit: Emit) -> Generator[None, None, bool]:
    """Emit a JSON string with its quotes; stop and return False if it is invalid."""
    emit(source.take(1))
    while char := (yield from peek(source)):
        if char == '"':
            emit(source.take(1))
            return True
        if char != "\\":
            part = source.take_match(_STRING_PART)
            if not part:
                return False
            emit(part)
            continue
        emit(source.take(1))
        if not (char := (yield from peek(source))) or char not in '"\\/bfnrtu':
            return False
        emit(source.take(1))
        for _ in range(4 if char == "u" else 0):
            if not _HEX.match((yield from peek(source))):
                return False
            emit(source.take(1))
    return False


def value(source: Input, emit: Emit) -> Generator[None, None, bool]:
    """Emit one JSON value; stop and return False if it is invalid or incomplete."""
    open_brackets: list[str] = []
    state: Literal["value", "first", "key", "behind"] = "value"
    while char := (yield from space(source, emit)):
        inner = open_brackets[-1] if open_brackets else ""
        if char == inner and state in ("first", "behind"):
            emit(source.take(1))
            open_brackets.pop()
        elif state == "behind":
            if char != ",":
                return False
            emit(source.take(1))
            state = "key" if inner == "}" else "value"
            continue
        elif inner == "}" and state in ("first", "key"):
            if char != '"' or not (yield from string(source, emit)):
                return False
            if (yield from space(source, emit)) != ":":
                return False
            emit(source.take(1))
            state = "value"
            continue
        elif char in "{[":
            emit(source.take(1))
            open_brackets.append("}" if char == "{" else "]")
            state = "first"
            continue
        elif not (yield from (string if char == '"' else _atom)(source, emit)):
            return False
        if not open_brackets:
            return True
        state = "behind"
    return False


def _atom(source: Input, emit: Emit) -> Generator[None, None, bool]:
    """Emit a number, true, false or null; also NaN and Infinity, which Python writes."""
    word = ""
    while (char := (yield from peek(source))) and not _ATOM_END.match(char):
        emit(source.take(1))
        word += char
        if len(word) > MAX_ATOM:
            return False
    return _ATOM.fullmatch(word) is not None
