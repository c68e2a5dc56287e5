"""The cost of `multipleOf` in a schema: one state per remainder of a number."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from math import lcm
from typing import Any

from quire.text.json_types import objects

MAX_REMAINDERS = 2**15
"""Limit that compiles in half a second. Above it, llguidance takes many seconds, which its fuel
does not count. With numbers of 32 bits its results are wrong."""
_JOINED = frozenset({"allOf", "anyOf", "oneOf", "$ref"})


def too_many_remainders(schema: Any) -> str | None:
    """Return why numbers of the schema cannot be followed; None if they can.

    In joined schemas all `multipleOf` count at once, as their least common multiple.
    """
    keywords = set[str]()
    multiples = {value.normalize() for value in _multiples(schema, keywords)}
    groups = [multiples] if keywords & _JOINED else [{each} for each in multiples]
    if all(map(_fits, groups)):
        return None
    return (
        f"multipleOf may be {MAX_REMAINDERS} at most, without its decimal point; also the least "
        "common multiple of those that allOf, anyOf, oneOf or $ref join"
    )


def _fits(multiples: set[Decimal]) -> bool:
    exponents = [int(each.as_tuple().exponent) for each in multiples]
    unit = min(0, *exponents) if exponents else 0
    modulus = 1
    for each, exponent in zip(multiples, exponents, strict=True):
        if len(each.as_tuple().digits) + exponent - unit > len(str(MAX_REMAINDERS)):
            return False
        modulus = lcm(modulus, int(each.scaleb(-unit)))
        if modulus > MAX_REMAINDERS:
            return False
    return True


def _multiples(schema: Any, keywords: set[str]) -> Iterator[Decimal]:
    """Yield every `multipleOf` at any depth; add all keys of objects to `keywords`."""
    for each in objects(schema):
        keywords.update(each)
        value = each.get("multipleOf")
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield Decimal(repr(value))
