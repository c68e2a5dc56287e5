"""Filters and functions of chat templates that differ from Jinja's own."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

from jinja2.exceptions import SecurityError, TemplateError
from jinja2.utils import Namespace

from quire.text import template_budget as budget


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without Jinja's HTML escapes, as Hugging Face's templates expect it."""
    budget.check_width(len(indent) if isinstance(indent, str) else indent)
    budget.charge_spelling(value)
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    budget.charge(len(text))
    return text


def join(value: Any, d: str = "", attribute: str | int | None = None) -> str:
    items = value if attribute is None else [_item(entry, attribute) for entry in value]
    return str(d).join([str(item) for item in budget.check_join(d, items)])


def replace(value: Any, old: str, new: str, count: int | None = None) -> str:
    budget.check_replace(value, old, new)
    return str(value).replace(str(old), str(new), -1 if count is None else count)


def indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    budget.check_width(len(width) if isinstance(width, str) else width)
    space = width if isinstance(width, str) else " " * width
    lines = f"{budget.charge_spelling(value)}\n".splitlines()
    budget.charge(len(space) * len(lines))
    indented = [space + line if line or blank else line for line in lines[1:]]
    return "\n".join([space + lines[0] if first else lines[0], *indented])


def sum_(value: Any, attribute: str | int | None = None, start: int | float = 0) -> Any:
    items = value if attribute is None else [_item(entry, attribute) for entry in value]
    numbers = [start, *items]
    if not all(isinstance(number, (int, float)) for number in numbers):
        raise SecurityError("it sums something else than numbers")
    return sum(numbers)


def raise_exception(message: str) -> NoReturn:
    """Refuse messages from within a template."""
    raise TemplateError(message)


def strftime_now(layout: str) -> str:
    budget.check_width(len(layout))
    return datetime.now().strftime(layout)


class PublicNamespace(Namespace):
    """A namespace without private names, which could shadow Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"it stores the private name {name!r}")


def _item(entry: Any, attribute: str | int) -> Any:
    """Return the item at a dotted path such as "function.name", as Jinja reads it."""
    for name in str(attribute).split("."):
        if isinstance(entry, list) and name.isdigit():
            entry = entry[int(name)] if int(name) < len(entry) else ""
        elif isinstance(entry, dict):
            entry = entry.get(name, "")
        else:
            raise SecurityError("it takes an attribute of something that is not a table")
    return entry
