"""Parameter classes whose constructor names a replacement for fields that they lack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.registry import closest


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
    kind: str,
    name: str,
    value: object,
    elsewhere: Mapping[str, Elsewhere],
    known: tuple[str, ...],
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
