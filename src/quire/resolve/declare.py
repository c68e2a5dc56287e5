"""Declare a command's own flags, one line each: most of a flag follows from its default."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quire.resolve.field_flags import parse_size


def count(text: str) -> int:
    """Return a number of at least 1; raise `ArgumentTypeError` for others."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


_TYPES: dict[type, Callable[[str], Any]] = {int: count, float: float, type(Path()): Path}
_METAVARS: dict[Any, str] = {count: "N", int: "N", float: "X", Path: "FILE", parse_size: "SIZE"}


class Flags:
    """Adds flags to a parser, or to a group of one."""

    def __init__(self, parser: argparse._ActionsContainer) -> None:
        self._parser = parser

    def __call__(
        self, names: str, default: Any = None, text: str = "", aliases: str = "", **options: Any
    ) -> None:
        """Add a flag, which may also be spelled with underscores.

        Args:
            names: its spellings, separated by spaces.
            default: False makes a switch, True one with `--no-…`, and a list takes several values.
                The type is that of the default; a whole number is at least 1 (`count`).
            text: the help; the default is added to it.
            aliases: names of other engines, which the help does not show.
            options: argparse's, where they do not follow from the default.
        """
        spellings: list[str] = []
        for name in names.split():
            own = name.replace("-", "_").replace("__", "--", 1) if name[:2] == "--" else name
            spellings += dict.fromkeys((name, own))
        if isinstance(default, bool):
            switch = argparse.BooleanOptionalAction if default else "store_true"
            given = spellings[:1] if default else spellings
            self._parser.add_argument(*given, action=switch, default=default, help=text)
            return
        many = isinstance(default, list | tuple) and not {"type", "action"} & options.keys()
        if many:
            options.setdefault("nargs", "+")
        if not {"choices", "action"} & options.keys():
            each = next(iter(default), None) if many else default
            convert = options.setdefault("type", _TYPES.get(type(each)))
            options.setdefault("metavar", _METAVARS.get(convert))
        if default not in (None, "", []) and "default: " not in text:
            shown = " ".join(map(str, default)) if many else "%(default)s"
            text = f"{text} (default: {shown})".lstrip()
        action = self._parser.add_argument(*spellings, default=default, help=text, **options)
        if aliases:
            hidden = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
            self._parser.add_argument(*aliases.split(), dest=action.dest, **(options | hidden))
