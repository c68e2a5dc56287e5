"""A name → object table that imports an entry only when it is asked for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import import_module
from typing import Any


class Registry:
    """Maps names to `"package.module:attribute"` strings.

    Importing the registry imports none of its entries, so that start-up pays for one
    architecture (or scheme, or benchmark), not for all.
    """

    def __init__(self, kind: str, entries: dict[str, str]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def names(self) -> list[str]:
        return sorted(self._entries)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def load(self, name: str) -> Any:
        """The object registered under `name`.

        Raises:
            KeyError: with the closest known names in its message.
        """
        if name not in self._entries:
            raise KeyError(f"unknown {self.kind} {name!r}; {did_you_mean(name, self._entries)}")
        module, _, attribute = self._entries[name].partition(":")
        return getattr(import_module(module), attribute)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A clause naming the closest of `known`, or all of them if none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
