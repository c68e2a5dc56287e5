"""What `multipleOf` in a schema costs: a number is followed by its remainder, a state for each."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from math import lcm
from typing import Any

MAX_REMAINDERS = 2**15
"""Of which half a second of compiling is made. Some more, and llguidance takes many seconds, which
no fuel counts; 32 bits, and it gets them wrong."""
_JOINED = frozenset({"allOf", "anyOf", "oneOf", "$ref"})


def too_many_remainders(schema: Any) -> str | None:
    """Why numbers under the schema could not be followed; None if they can.

    Where schemas are joined, all `multipleOf` are taken to hold at once, by their least common
    multiple.
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
    """Every `multipleOf`, wherever it stands; all keys of objects go into `keywords`."""
    if isinstance(schema, list):
        for each in schema:
            yield from _multiples(each, keywords)
    if isinstance(schema, dict):
        keywords.update(schema)
        for keyword, value in schema.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if keyword == "multipleOf" and number:
                yield Decimal(repr(value))
            else:
                yield from _multiples(value, keywords)
