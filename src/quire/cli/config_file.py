"""`--config FILE`: the flags of a file, under those of the command line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.core.registry import closest
from quire.resolve.config_file import Setting, read_settings
from quire.resolve.vllm_flags import PREFIX
from quire.system.records import dataclass

_SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_SAME = {"model": "model_tag"}
"""Flag → the positional argument with the same meaning."""


@dataclass(frozen=True, slots=True)
class FileValue:
    """A flag's value from a file, with file and line."""

    value: Any
    where: str


def file_values(
    parser: argparse.ArgumentParser, path: Path, given: Mapping[str, Any]
) -> dict[str, FileValue]:
    """Return the values that the file at `path` gives to flags of `parser`, by name.

    Every line is checked. Flags in `given` are left out, because the command line wins.

    Raises:
        ConfigError: a line is wrong; the text has file, line and flag.
    """
    flags: dict[str, argparse.Action] = {}
    for action in parser._actions:
        for option in action.option_strings:
            if option.startswith("--") and action.dest not in ("help", "config"):
                flags.setdefault(option.lstrip("-").replace("_", "-"), action)
    values: dict[str, FileValue] = {}
    for setting in read_settings(path):
        name = setting.key.replace("_", "-")
        if name not in flags:
            ours = [flag for flag, action in flags.items() if not action.dest.startswith(PREFIX)]
            close = " or ".join(closest(name, ours))
            hint = f"did you mean {close}?" if close else f"see {parser.prog} --help."
            raise ConfigError(f"{setting.where}: unknown flag {setting.key!r}; {hint}")
        action = flags[name]
        if action.dest in values:
            raise ConfigError(f"{setting.where}: {name} is already set by another line.")
        values[action.dest] = FileValue(_value(parser, action, setting), setting.where)
    return {
        name: value
        for name, value in values.items()
        if name not in given and _SAME.get(name) not in given
    }


def _value(parser: argparse.ArgumentParser, action: argparse.Action, setting: Setting) -> Any:
    """Return a setting's value, converted and checked as by its flag."""
    words = setting.words
    if words is None:
        if action.default is not None:
            raise _wrong(setting, f"it has no value; leave the line out for {action.default!r}")
        return None
    if action.nargs == 0:
        return _switch(action, setting, words)
    if action.metavar == "JSON" and len(words) > 1:
        words = [json.dumps(words)]
    many = action.nargs in ("+", "*") or isinstance(action, argparse._AppendAction)
    if not many and len(words) != 1:
        raise _wrong(setting, "it takes one value")
    if many and not words:
        raise _wrong(setting, "the list is empty")
    try:
        converted = [_checked(parser, action, word) for word in words]
    except argparse.ArgumentError as error:
        raise _wrong(setting, error.message) from None
    return converted if many else converted[0]


def _switch(action: argparse.Action, setting: Setting, words: list[str]) -> bool:
    """Return true or false, inverted for the `no-…` spelling."""
    on = _SWITCH.get(words[0].lower()) if len(words) == 1 else None
    if on is None:
        raise _wrong(setting, f"it is a switch: true or false, not {' '.join(words)!r}")
    return on != _turns_off(action, "--" + setting.key.replace("_", "-"))


def _turns_off(action: argparse.Action, option: str) -> bool:
    if isinstance(action, argparse.BooleanOptionalAction):
        return option.startswith("--no-")
    return action.const is False


def _checked(parser: argparse.ArgumentParser, action: argparse.Action, word: str) -> Any:
    value = parser._get_value(action, word)
    parser._check_value(action, value)
    return value


def _wrong(setting: Setting, why: str) -> ConfigError:
    return ConfigError(f"{setting.where}: {setting.key}: {why.rstrip('.')}.", param=setting.key)
