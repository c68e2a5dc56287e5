"""Argument parsing with one-line errors: exit status 2, and a suggestion for a mistyped flag."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from quire.cli.words import plain_words
from quire.core.errors import ConfigError
from quire.core.registry import closest
from quire.resolve.vllm_flags import PREFIX

if TYPE_CHECKING:
    from quire.cli.config_file import FileValue

_UNSET = object()
_UNDERSCORED = re.compile(r"/--\w*_[\w.]*")
"""As argparse joins a flag's spellings."""


class _Help(argparse.HelpFormatter):
    """Shows each flag with dashes; underscores are accepted too."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = copy(action)
        shown.option_strings = [flag for flag in action.option_strings if "_" not in flag]
        return super()._format_action_invocation(shown)


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` without abbreviations, with suggestions for unknown flags."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        defaults: dict[str, Any] = {"allow_abbrev": False, "formatter_class": _Help}
        super().__init__(*args, **(defaults | kwargs))

    def error(self, message: str) -> NoReturn:
        message = _UNDERSCORED.sub("", message)
        print(f"error: {message} [{ConfigError.code}]", file=sys.stderr)
        raise SystemExit(2)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Convert a value as argparse does, but without naming our functions in errors."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            if error.message.startswith("invalid _"):
                error.message = f"invalid value: {arg_string!r}"
            raise

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check a value as argparse does, but suggest a choice for a mistyped one."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            if close := closest(str(value), map(str, action.choices or ())):
                error.message = f"invalid choice: {value!r}; did you mean {' or '.join(close)}?"
            raise

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse `argv` and the file of its --config, with MODEL as --model; exit with 2 for unknown
        flags.

        The namespace also has the sources of values: `given`, names that the command line sets, and
        `file_values`, name → the file's value.

        Raises:
            ConfigError: a line of the file is wrong, or MODEL and --model differ.
        """
        command, words = _leaf(self, argv)
        argv = [*argv[: len(argv) - len(words)], *(words := plain_words(command, words))]
        given = _given(command, words)
        values: dict[str, FileValue] = {}
        if isinstance(path := given.get("config"), Path):
            from quire.cli.config_file import file_values

            values = file_values(command, path, given)
            command.set_defaults(**{name: value.value for name, value in values.items()})
        namespace, unknown = self.parse_known_args(argv)
        for word in unknown:
            if word.startswith("-"):
                flag = word.partition("=")[0]
                close = " or ".join(closest(flag, _flags(command)))
                hint = f"did you mean {close}?" if close else f"see {command.prog} --help"
                self.error(f"unknown flag {flag}; {hint}")
        if unknown:
            self.error(f"unexpected argument {unknown[0]!r}; see {command.prog} --help")
        if (model := given.get("model_tag")) is not None:
            if given.get("model", model) != model:
                raise ConfigError(
                    f"MODEL is {model} and --model is {given['model']}; give one of them.",
                    param="--model",
                )
            namespace.model = model
        namespace.given = frozenset(given)
        namespace.file_values = values
        return namespace


def _leaf(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[argparse.ArgumentParser, list[str]]:
    """Return the subcommand's parser for these words, and the remaining words."""
    rest = list(words)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and rest and rest[0] in action.choices:
            return _leaf(action.choices[rest[0]], rest[1:])
    return parser, rest


def _given(parser: argparse.ArgumentParser, words: list[str]) -> dict[str, Any]:
    """Return the values on the command line by name, without defaults."""
    unset = {
        action.dest: None if isinstance(action, argparse._AppendAction) else _UNSET
        for action in parser._actions
        if action.dest != argparse.SUPPRESS
    }
    parsed, _ = parser.parse_known_args(words, argparse.Namespace(**unset))
    return {
        name: value
        for name, value in vars(parsed).items()
        if value is not _UNSET and value is not None
    }


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Return every flag of `parser`, spelled as in its help."""
    for action in parser._actions:
        if not action.dest.startswith(PREFIX):
            yield from (option for option in action.option_strings if "_" not in option)
