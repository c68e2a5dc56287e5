"""Flags from `EngineArgs` and values for it; `EngineArgs.add_cli_args` makes the flags."""

from __future__ import annotations

import argparse
import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any

from quire.core.registry import did_you_mean
from quire.resolve.arguments import EngineArgs
from quire.resolve.field_flags import value_options


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--config`, which `cli.parser` handles."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="flags in YAML (.yaml) or TOML (.toml), one per line without its dashes: "
        "`max-num-seqs: 32`; flags on the command line win; `quire config` shows the result",
    )


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
