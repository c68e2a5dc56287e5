"""Argument parsing with one-line errors: exit status 2, and a suggestion for a mistyped flag."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from quire.core.registry import did_you_mean


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that takes no abbreviations and reports an unknown flag helpfully."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse `argv`; exits with 2 for anything that no flag takes."""
        namespace, unknown = self.parse_known_args(argv)
        for word in unknown:
            if word.startswith("-"):
                flag = word.partition("=")[0]
                known = did_you_mean(flag, _flags(self))
                hint = known if known.startswith("did") else f"see {self.prog} --help"
                self.error(f"unknown flag {flag}; {hint}")
        if unknown:
            self.error(f"unexpected argument {unknown[0]!r}; see {self.prog} --help")
        return namespace


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Every flag of `parser` and its subcommands, in the spelling that help shows."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _flags(sub)
        yield from (option for option in action.option_strings if "_" not in option)
