"""Flags of commands; and flags from `EngineArgs`, which `EngineArgs.add_cli_args` declares."""

from __future__ import annotations

import argparse
import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from quire.core.registry import did_you_mean
from quire.resolve.arguments import EngineArgs
from quire.resolve.field_flags import parse_size, value_options


def count(text: str) -> int:
    """Return a number of at least 1; raise `ArgumentTypeError` for others."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def from_zero(text: str) -> int:
    """Return a number of at least 0; raise `ArgumentTypeError` for others."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
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
            action = self._parser.add_argument(*given, action=switch, default=default, help=text)
            if not default:  # `--flag=false`, to override a file
                off = [f"--no-{name[2:]}" for name in spellings if name[:2] == "--"]
                self._parser.add_argument(
                    *off,
                    dest=action.dest,
                    action="store_false",
                    default=argparse.SUPPRESS,
                    help=argparse.SUPPRESS,
                )
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


def add_engine_flags(
    parser: argparse.ArgumentParser,
    defaults: Mapping[str, Any] | None = None,
    *,
    positional: bool = False,
) -> None:
    """Add the engine's flags, and `--config`, which `cli.parser` handles.

    Args:
        defaults: defaults that differ from those of `EngineArgs`.
        positional: add MODEL, too, which `cli.parser` takes as --model.
    """
    if positional:
        text = "the model; the same as --model"
        parser.add_argument("model_tag", nargs="?", metavar="MODEL", help=text)
    Flags(parser)(
        "--config",
        None,
        "flags in YAML (.yaml) or TOML (.toml), one per line without its dashes: "
        "`max-num-seqs: 32`; flags on the command line win; `quire config` shows the result",
        type=Path,
    )
    EngineArgs.add_cli_args(parser, defaults)


def engine_flags_from(args: EngineArgs) -> list[str]:
    """Return the flags for `args`: one per field that differs from its default."""
    flags: list[str] = []
    for field in dataclasses.fields(EngineArgs):
        value = getattr(args, field.name)
        name = field.name.replace("_", "-")
        if value == field.default:
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            flags.append(f"--{name}={json.dumps(dataclasses.asdict(value))}")
        elif isinstance(value, bool):
            flags.append(f"--{name}" if value else f"--no-{name}")
        else:
            flags.append(f"--{name}={value}")
    return flags


def field_value(name: str, word: str) -> Any:
    """Return the value of an `EngineArgs` field from a word of a command line.

    `none` means None if the field may be unset; a switch takes true or false.

    Raises:
        argparse.ArgumentTypeError: the word is no value of the field, or the field is unknown.
    """
    hints = typing.get_type_hints(EngineArgs)
    if name not in hints:
        raise argparse.ArgumentTypeError(f"unknown flag {name!r}; {did_you_mean(name, hints)}")
    hint = hints[name]
    if word == "none" and types.NoneType in typing.get_args(hint):
        return None
    if bool in (hint, *typing.get_args(hint)):
        if word not in ("true", "false"):
            raise argparse.ArgumentTypeError(f"{name} is true or false, not {word!r}")
        return word == "true"
    options = value_options(name, hint)
    choices = options.get("choices")
    if choices is not None and word not in choices:
        raise argparse.ArgumentTypeError(f"{name} is one of {', '.join(choices)}, not {word!r}")
    try:
        return options.get("type", str)(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{name} cannot be {word!r}") from None
