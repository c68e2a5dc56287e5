"""Special tokens in users' texts are ordinary text.

Before a chat is rendered, an unguessable mark breaks every such token in a message. The template
works as usual: it may trim, test or join messages. Then the marks are removed, and broken tokens
are not read as control tokens. The same happens at the edges of a message if its neighbours could
complete a special token. Other messages reach the template unchanged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from quire.system.records import dataclass

_DEEPEST = 50
"""Greatest depth of parentheses in a pattern."""


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A rendered chat: its text, and where a special token would come from the user.

    Attributes:
        breaks: positions in `text`, in order; a special token that reaches over one is text.
    """

    text: str
    breaks: tuple[int, ...]


class Guard:
    """Breaks special tokens in untrusted text with a mark, and finds the marks again."""

    def __init__(self, special_tokens: tuple[str, ...]) -> None:
        secret = os.urandom(16)
        self.mark = "".join(chr(0xF0000 + byte) for byte in secret)  # private-use characters
        self._parts = _parts(special_tokens)

    def protect(self, value: Any) -> Any:
        """Return `value` with a break in every special token of its strings and keys."""
        if isinstance(value, str):
            return self._protect_text(value)
        if isinstance(value, (list, tuple)):
            return [self.protect(item) for item in value]
        if isinstance(value, dict):
            return {self._break(str(key)): self.protect(item) for key, item in value.items()}
        return value

    def _protect_text(self, text: str) -> str:
        broken = self._break(text)
        stripped = broken.strip()
        parts = self._parts
        if any(stripped[:size] in parts.tails for size in parts.sizes):
            at = len(broken) - len(broken.lstrip())
            broken = broken[:at] + self.mark + broken[at:]
        if any(stripped[-size:] in parts.heads for size in parts.sizes):
            at = len(broken.rstrip())
            broken = broken[:at] + self.mark + broken[at:]
        return broken

    def _break(self, text: str) -> str:
        """Return `text` with a mark after the first character of every special token."""
        parts, position = [], 0
        search = self._parts.pattern.search
        match = search(text)
        while match:
            cut = match.start() + 1
            parts += [text[position:cut], self.mark]
            position = cut
            match = search(text, cut)
        return "".join([*parts, text[position:]]) if parts else text

    def lift(self, text: str) -> RenderedChat:
        """Return `text` without the marks, and their places."""
        parts = text.split(self.mark)
        breaks, position = [], 0
        for part in parts[:-1]:
            position += len(part)
            breaks.append(position)
        return RenderedChat("".join(parts), tuple(breaks))


@dataclass(frozen=True, slots=True)
class _Parts:
    """The special tokens, and the fragments that neighbouring texts may complete to one.

    Attributes:
        pattern: matches the longest token at a place.
        tails, heads: proper suffixes and prefixes of tokens.
        sizes: the lengths of these.
    """

    pattern: re.Pattern[str]
    tails: frozenset[str]
    heads: frozenset[str]
    sizes: tuple[int, ...]


@lru_cache(maxsize=4)  # a server has one tokenizer, with up to thousands of special tokens
def _parts(tokens: tuple[str, ...]) -> _Parts:
    return _Parts(
        re.compile(any_of(tokens)),
        frozenset(token[cut:] for token in tokens for cut in range(1, len(token))),
        frozenset(token[:cut] for token in tokens for cut in range(1, len(token))),
        tuple(range(1, max(map(len, tokens), default=0))),
    )


def any_of(words: Iterable[str]) -> str:
    """Return a regular expression for the longest of `words` at a place.

    Words share their prefixes. In a plain list, each of thousands would be tried at every "<".
    """
    return _any_of(tuple(words))


@lru_cache(maxsize=4)  # thousands of words take up to 0.1 s, and each request needs the pattern
def _any_of(words: tuple[str, ...]) -> str:
    return _tree({*words} - {""}) or "(?!)"


def _tree(words: set[str], depth: int = 0) -> str:
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    if depth == _DEEPEST:
        return f"(?:{'|'.join(map(re.escape, longest_first))})"
    groups: dict[str, set[str]] = {}
    for word in longest_first:
        if word:
            groups.setdefault(word[0], set()).add(word)
    options = []
    for group in groups.values():
        first, last = min(group), max(group)
        same = (a == b for a, b in zip(first, last, strict=False))
        start = first[: [*same, False].index(False)]
        rest = {word.removeprefix(start) for word in group}
        options.append(re.escape(start) + (_tree(rest, depth + 1) if rest != {""} else ""))
    tree = "|".join(options)
    return f"(?:{tree})" + ("?" if "" in words else "") if options else ""


def controls(chat: RenderedChat, tokens: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return the special tokens in `chat` that contain no break."""
    pattern = _parts(tokens).pattern
    controls: list[tuple[int, int]] = []
    breaks = iter(chat.breaks)
    following = next(breaks, None)
    match = pattern.search(chat.text)
    while match:
        start, stop = match.span()
        while following is not None and following <= start:
            following = next(breaks, None)
        inside = max(stop, start + 2)  # a mark can only follow a token of one character
        broken = following is not None and following < inside
        if not broken:
            controls.append((start, stop))
        match = pattern.search(chat.text, start + 1 if broken else stop)
    return controls
