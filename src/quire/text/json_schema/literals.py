"""Regular expressions for all strings except some."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

MAX_CHARACTERS = 64
"""Maximum length of one string; the expression nests one group per character."""
MAX_TOTAL = 2000
"""Maximum length of all strings together."""
_WORD = "[A-Za-z0-9_ :/#@-]+"
_WORDS = re.compile(rf"\^(?:(?P<one>{_WORD})|\((?:\?:)?(?P<many>{_WORD}(?:\|{_WORD})*)\))\$")


def all_but(texts: Iterable[str]) -> str | None:
    """Return an expression that matches exactly the strings that are not `texts`.

    It branches at each position where a string can differ from the tree of `texts`: by another
    character, by ending early, or by continuing. None if the texts are too long.
    """
    tree: dict[str, Any] = {}
    total = 0
    for text in texts:
        total += len(text)
        if len(text) > MAX_CHARACTERS or total > MAX_TOTAL:
            return None
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    return f"^{_leaving(tree)}$"


def matched_by(pattern: Any) -> list[str] | None:
    """Return the strings that a pattern matches, if it is `^word$` or `^(word|…)$`.

    Some validators let `$` match before a final line break, so each word appears with one, too.
    """
    found = _WORDS.fullmatch(pattern) if isinstance(pattern, str) else None
    if found is None:
        return None
    words = (found["one"] or found["many"]).split("|")
    return [word + end for word in words for end in ("", "\n")]


def _leaving(node: dict[str, Any]) -> str:
    characters = [each for each in node if each]
    parts = [_code(each) + _leaving(node[each]) for each in characters]
    other = f"[^{''.join(map(_code, characters))}]" if characters else "(?s:.)"
    parts.append(f"{other}(?s:.)*")
    return f"({'|'.join(parts)}){'' if '' in node else '?'}"


def _code(character: str) -> str:
    return (
        character if character.isascii() and character.isalnum() else rf"\x{{{ord(character):x}}}"
    )
