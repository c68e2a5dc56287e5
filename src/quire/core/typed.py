"""Checks the types of users' structs, because a struct's own constructor takes any value."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

from quire.core.errors import InvalidRequestError

_WHERE = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")


def check_types(value: msgspec.Struct) -> None:
    """Check each field's type; convert numpy's numbers to Python's.

    Raises:
        InvalidRequestError: names the field and its type.
    """
    try:
        msgspec.convert(value, _shape(type(value)), from_attributes=True)
    except UnicodeEncodeError:
        raise InvalidRequestError("A text is not valid Unicode: a lone surrogate.") from None
    except msgspec.ValidationError as error:
        if _plain_numbers(value):
            check_types(value)
            return
        text = str(error)
        found = _WHERE.search(text)
        path = found["path"] if found else ""
        raise InvalidRequestError(
            f"{path.removesuffix('[...]')} is wrong: {_WHERE.sub('', text)}.",
            param=re.split(r"[.\[]", path)[0] or None,
        ) from None


@lru_cache
def _shape(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return a struct with the same fields that checks only their types."""
    fields = [(field.name, field.type) for field in msgspec.structs.fields(kind)]
    return msgspec.defstruct(kind.__name__, fields, kw_only=True)


def _plain_numbers(value: msgspec.Struct) -> bool:
    """Replace numpy's numbers by Python's; return whether there were any."""
    found: dict[str, Any] = {
        name: given.item()
        for name in value.__struct_fields__
        if getattr(given := getattr(value, name), "shape", None) == () and hasattr(given, "item")
    }
    for name, number in found.items():
        msgspec.structs.force_setattr(value, name, number)
    return bool(found)
