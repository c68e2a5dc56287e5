"""Words of a command line in vLLM's other spellings.

`--speculative-config.method ngram` is a field of an object in JSON, and a switch may have a value:
`--enable-prefix-caching=false`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import Any

from quire.core.errors import ConfigError

_SWITCH = {"true": True, "false": False}


def plain_words(parser: argparse.ArgumentParser, words: Iterable[str]) -> list[str]:
    """Return the words in spellings that argparse knows.

    Raises:
        ConfigError: a field of an object has no value, or the object is given, too.
    """
    options = {name: action for action in parser._actions for name in action.option_strings}
    objects: dict[str, dict[str, Any]] = {}
    given: set[str] = set()
    found: list[str] = []
    left = list(words)[::-1]
    while left:
        word = left.pop()
        flag, equals, value = word.partition("=")
        name, dot, path = flag.partition(".")
        if flag[:1] == "-" and flag in options:
            given.add(options[flag].dest)
            if options[flag].nargs == 0:
                if not equals and left and left[-1].lower() in _SWITCH:
                    value = left.pop()
                word = _switched(options, flag, value)
            found += [word] if word else []
        elif flag[:1] == "-" and dot and name in options and options[name].nargs != 0:
            if not equals and not left:
                raise ConfigError(f"{flag} has no value.", param=flag)
            target = objects.setdefault(options[name].dest, {"": name})
            _set(target, path.split("."), value if equals else left.pop())
        else:
            found.append(word)
    for dest, fields in objects.items():
        name = fields.pop("")
        if dest in given:
            raise ConfigError(
                f"{name} and {name}.{next(iter(fields))} exclude each other.",
                fix="Write all fields in one of the two ways.",
                param=name,
            )
        found.append(f"{name}={json.dumps(fields)}")
    return found


def _switched(options: dict[str, argparse.Action], flag: str, value: str) -> str:
    """Return the switch that means `flag` with a value; empty if it is none."""
    on = _SWITCH.get(value.lower())
    if on is None:
        return f"{flag}={value}" if value else flag  # argparse refuses the value
    if on:
        return flag
    action = options[flag]
    if isinstance(action, argparse.BooleanOptionalAction):
        return flag.replace("--no-", "--", 1) if flag[:5] == "--no-" else f"--no-{flag[2:]}"
    others = (
        name for name, other in options.items()
        if other.dest == action.dest and other.const is not action.const
    )  # fmt: skip
    return next(others, "")


def _set(target: dict[str, Any], path: list[str], value: str) -> None:
    """Set a field of a field …; its value is JSON, or a text."""
    *outer, last = (name.replace("-", "_") for name in path)
    for name in outer:
        if not isinstance(target.get(name), dict):
            target[name] = {}
        target = target[name]
    try:
        target[last] = json.loads(value)
    except ValueError:
        target[last] = value
