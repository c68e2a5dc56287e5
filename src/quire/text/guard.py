"""Special tokens in users' texts are ordinary text.

Before a chat is rendered, an unguessable mark breaks every such token in a message. The template
works as usual: it may trim, test or join messages. Then the marks are removed, and broken tokens
are not read as control tokens. The same happens at the edges of a message if its neighbours could
complete a special token. Other messages reach the template unchanged.
"""

from __future__ import annotations

import os
import re
from typing import Any

from quire.system.records import dataclass


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
        self._pattern = _alternatives(special_tokens)
        self._tails = tuple({token[cut:] for token in special_tokens for cut in _cuts(token)})
        self._heads = tuple({token[:cut] for token in special_tokens for cut in _cuts(token)})

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
        if stripped.startswith(self._tails):
            at = len(broken) - len(broken.lstrip())
            broken = broken[:at] + self.mark + broken[at:]
        if stripped.endswith(self._heads):
            at = len(broken.rstrip())
            broken = broken[:at] + self.mark + broken[at:]
        return broken

    def _break(self, text: str) -> str:
        """Return `text` with a mark after the first character of every special token."""
        parts, position = [], 0
        match = self._pattern.search(text)
        while match:
            cut = match.start() + 1
            parts += [text[position:cut], self.mark]
            position = cut
            match = self._pattern.search(text, cut)
        return "".join([*parts, text[position:]]) if parts else text

    def lift(self, text: str) -> RenderedChat:
        """Return `text` without the marks, and their places."""
        parts = text.split(self.mark)
        breaks, position = [], 0
        for part in parts[:-1]:
            position += len(part)
            breaks.append(position)
        return RenderedChat("".join(parts), tuple(breaks))


def _cuts(token: str) -> range:
    return range(1, len(token))


def _alternatives(tokens: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern for any of `tokens`, the longest first."""
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def controls(chat: RenderedChat, tokens: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return the special tokens in `chat` that contain no break."""
    pattern = _alternatives(tokens)
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
