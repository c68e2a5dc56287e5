"""Write bounds of numbers that llguidance follows exactly."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

DIGITS = 14
"""Digits of a bound; llguidance reads longer ones inexactly."""
NEAR_ZERO = 20
"""Decimal places of the bound that replaces an exclusive 0."""
LARGEST = 10**12
"""Largest bound for which `DIGITS` digits leave room for a fraction."""


def strict_bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema without exclusive bounds that are whole numbers.

    llguidance accepts `0` between an exclusive 0 and 0.5: if both bounds have the same integer
    part, it ignores that one is exclusive. An inclusive bound next to it excludes it, such as
    1.0000000000001 for 1.
    """
    found = dict(schema)
    for strict, plain, end in (
        ("exclusiveMinimum", "minimum", 1),
        ("exclusiveMaximum", "maximum", -1),
    ):
        bound = schema.get(strict)
        if bound is True:  # draft 4
            bound = schema.get(plain)
        elif bound is False:
            bound = None
        if schema.get("type") == "integer" or bound is None or not _is_whole(bound):
            continue
        places = len(str(abs(int(bound)))) - DIGITS if bound else -NEAR_ZERO
        step = Decimal(1).scaleb(places)
        following = float(int(bound) + step.copy_sign(Decimal(end)))
        own = schema.get(plain, following)
        found.pop(strict)
        found[plain] = max(own, following) if end > 0 else min(own, following)
    return found


def _is_whole(bound: Any) -> bool:
    if isinstance(bound, bool) or not isinstance(bound, int | float) or abs(bound) > LARGEST:
        return False
    return float(bound).is_integer()
