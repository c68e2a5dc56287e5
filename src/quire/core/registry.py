"""A table of names and objects that imports an entry at its first use."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any


class Registry:
    """Maps names to `"package.module:attribute"` strings, or to `"package.module"`.

    Importing the registry imports none of its entries, so a start imports one architecture (or
    scheme, or benchmark), not all.
    """

    def __init__(self, kind: str, entries: dict[str, str]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def names(self) -> list[str]:
        return sorted(self._entries)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def load(self, name: str) -> Any:
        """Return the object registered under `name`.

        Raises:
            KeyError: the name is unknown; the message has the closest known names.
        """
        if name not in self._entries:
            raise KeyError(f"unknown {self.kind} {name!r}; {did_you_mean(name, self._entries)}")
        module, _, attribute = self._entries[name].partition(":")
        found = import_module(module)
        return getattr(found, attribute) if attribute else found


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a clause that names the closest of `known`, or all of them if none is close."""
    names = set(known)
    close = closest(word, names)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(sorted(names))}"


def closest(word: str, known: Iterable[str]) -> list[str]:
    """Return at most three names that `word` probably meant, the likeliest first.

    Dashes, underscores and case do not count. The word itself is never returned: it was refused.
    """
    shares = {name: _likeness(_plain(word), _plain(name)) for name in set(known) - {word}}
    best = max(shares.values(), default=0.0)
    close = [n for n, share in shares.items() if share >= max(_CLOSE, best - _TIE)]
    return sorted(close, key=lambda name: (-shares[name], name))[:3]


_CLOSE = 0.66
"""Least share of equal letters: one of three may be wrong."""
_TIE = 0.05
_LEAST_PREFIX = 3


def _plain(word: str) -> str:
    return word.lower().lstrip("-").replace("_", "-")


def _likeness(word: str, name: str) -> float:
    """Return the likeness from 0 to 1; a prefix counts as at least 0.9."""
    if len(word) >= _LEAST_PREFIX and name.startswith(word):
        return max(0.9, len(word) / len(name))
    from difflib import SequenceMatcher

    return SequenceMatcher(None, word, name).ratio()
