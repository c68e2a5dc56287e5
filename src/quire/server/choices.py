"""The allowed values of a field, by its path: msgspec's errors name only the wrong one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from msgspec import inspect

_STEP = re.compile(r"\[[^\]]*\]|[^.\[\]]+")


def choices_at(kind: Any, path: str) -> list[str]:
    """Return the values of the field at `path` ("messages[0].role") in a `kind`; none if any is
    allowed."""
    found = list(_alternatives(_known(kind)))
    for step in _STEP.findall(path):
        found = [each for outer in found for inner in _inside(outer, step)
                 for each in _alternatives(inner)]  # fmt: skip
    literals = [each.values for each in found if isinstance(each, inspect.LiteralType)]
    return sorted({str(value) for values in literals for value in values})


_known = lru_cache(inspect.type_info)


def _alternatives(kind: inspect.Type) -> Iterator[inspect.Type]:
    yield from kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _inside(kind: inspect.Type, step: str) -> Iterator[inspect.Type]:
    match kind:
        case inspect.ListType():
            yield kind.item_type
        case inspect.DictType():
            yield kind.value_type
        case inspect.StructType():
            if step == kind.tag_field:
                yield inspect.LiteralType((str(kind.tag),))
            yield from (field.type for field in kind.fields if field.encode_name == step)
