"""Checks of users' parameters: the names of fields when they are made, and the types later."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.registry import closest

_WHERE = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")


class Elsewhere(NamedTuple):
    """A field of other engines' parameters.

    Attributes:
        instead: what to write instead.
        neutral: values without effect, which are accepted; None always is.
    """

    instead: str
    neutral: tuple[Any, ...] = ()


class NamedFields(msgspec.StructMeta):
    """Metaclass of parameters. A class's `elsewhere` has the known fields that it lacks.

    The constructor raises `InvalidRequestError` for an unknown field. Decoding does not.
    """

    elsewhere: Mapping[str, Elsewhere]

    def __call__(self, *args: Any, **given: Any) -> Any:
        try:
            return super().__call__(*args, **given)
        except TypeError:
            known = self.__struct_fields__
            kept = {name: value for name, value in given.items() if name in known}
            if len(kept) == len(given):
                raise
        for name in given.keys() - kept.keys():
            _check(self.__name__, name, given[name], self.elsewhere, known)
        return super().__call__(*args, **kept)


def _check(
    kind: str, name: str, value: object, elsewhere: Mapping[str, Elsewhere], known: tuple[str, ...]
) -> None:
    """Raise `InvalidRequestError` unless the field is in `elsewhere` and its value neutral."""
    found = elsewhere.get(name)
    if found is not None and (value is None or any(_same(value, one) for one in found.neutral)):
        return
    if found is not None:
        fix = f"Use {found.instead}."
    elif close := closest(name, known):
        fix = f"Did you mean {' or '.join(close)}?"
    else:
        fix = f"It has {', '.join(known)}."
    raise InvalidRequestError(f"{kind} has no field {name!r}.", fix=fix, param=name)


def _same(value: object, other: object) -> bool:
    """Return whether two values are equal and both or neither are bool."""
    return isinstance(value, bool) is isinstance(other, bool) and bool(value == other)


def check_types(value: msgspec.Struct) -> None:
    """Check each field's type; convert numpy's numbers to Python's. A constructor takes any value.

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
