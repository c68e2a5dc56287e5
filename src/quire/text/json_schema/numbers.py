"""Bounds of numbers that llguidance follows exactly, and their numbers in scientific notation.

llguidance allows bounded numbers only without an exponent. Regular expressions add numbers such as
`1e-06`: one nonzero digit before the point, and at most two digits of exponent.
"""

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


LEAST, MOST = -99, 99
"""Range of exponents; all such numbers fit a double."""
_ANY = r"[1-9](\.[0-9]+)?"


def scientific(schema: Mapping[str, Any]) -> str | None:
    """Return an expression for the numbers within the bounds; None if there are none."""
    low, low_strict = _bound(schema, "minimum", "exclusiveMinimum")
    high, high_strict = _bound(schema, "maximum", "exclusiveMaximum")
    parts = [*_positive(low, low_strict, high, high_strict)]
    mirrored = [None if each is None else -each for each in (high, low)]
    parts += [f"-({part})" for part in _positive(mirrored[0], high_strict, mirrored[1], low_strict)]
    above = low is None or low < 0 or (low == 0 and not low_strict)
    below = high is None or high > 0 or (high == 0 and not high_strict)
    if above and below:
        parts.append(r"-?0(\.0+)?([eE][+-]?[0-9]{1,2})?")
    return "|".join(parts) or None


def _positive(
    low: Decimal | None, low_strict: bool, high: Decimal | None, high_strict: bool
) -> list[str]:
    """Return expressions for the numbers above 0."""
    if high is not None and (high <= 0 or (low is not None and low > high)):
        return []
    first, last = LEAST, MOST
    parts: list[str] = []
    least = low if low is not None and low > 0 else None
    if least is not None:
        first = least.adjusted() + 1
    if high is not None:
        last = high.adjusted() - 1
    if least is not None and (high is None or least.adjusted() < high.adjusted()):
        parts += _at(least.adjusted(), _mantissa(least, above=True, strict=low_strict))
    if high is not None and (least is None or least.adjusted() < high.adjusted()):
        parts += _at(high.adjusted(), _mantissa(high, above=False, strict=high_strict))
    first, last = max(first, LEAST), min(last, MOST)
    if first <= last:
        parts.append(f"{_ANY}[eE]({'|'.join(map(_exponent, range(first, last + 1)))})")
    return parts


def _at(exponent: int, mantissas: list[str]) -> list[str]:
    if not mantissas or not LEAST <= exponent <= MOST:
        return []
    return [f"({'|'.join(mantissas)})[eE]{_exponent(exponent)}"]


def _exponent(value: int) -> str:
    sign = "-" if value < 0 else r"\+?" if value else "[+-]?"
    return f"{sign}0?{abs(value)}" if abs(value) < 10 else f"{sign}{abs(value)}"


def _mantissa(bound: Decimal, above: bool, strict: bool) -> list[str]:
    """Return expressions for the mantissas on one side of the bound's mantissa.

    Each expression fixes the first digit that differs; an equal mantissa may have trailing zeros.
    So numbers that only rounding would move over the bound are excluded.
    """
    digits = "".join(map(str, bound.as_tuple().digits)).rstrip("0")
    found: list[str] = []
    for place, digit in enumerate(digits):
        low, high = (int(digit) + 1, 9) if above else (0 if place else 1, int(digit) - 1)
        if low <= high:
            found.append(_pointed(digits[:place], f"[{low}-{high}]", "[0-9]*"))
    if not strict:
        found.append(_pointed(digits, "", "0*" if not above else "[0-9]*"))
    if not above:  # the bound's first digits alone are less than the bound
        found += [_pointed(digits[:length], "", "") for length in range(1, len(digits))]
    return found


def _pointed(digits: str, own: str, more: str) -> str:
    """Return digits with a point after the first one, if digits follow it."""
    if not digits:
        return own + r"(\.[0-9]+)?"
    if len(digits) == 1 and not own:
        return digits + (rf"(\.{more.replace('*', '+')})?" if more else "")
    return rf"{digits[0]}\.{digits[1:]}{own}{more}"


def _bound(schema: Mapping[str, Any], plain: str, strict: str) -> tuple[Decimal | None, bool]:
    """Return the tighter one of two bounds, and whether it is exclusive."""
    value, own = schema.get(plain), schema.get(strict)
    if isinstance(own, bool):  # draft 4
        return (None if value is None else _decimal(value)), own and value is not None
    sign = 1 if plain == "minimum" else -1
    bounds = [(sign * _decimal(each), flag) for each, flag in ((value, False), (own, True))
              if each is not None]  # fmt: skip
    if not bounds:
        return None, False
    bound, flag = max(bounds)
    return sign * bound, flag


def _decimal(value: Any) -> Decimal:
    return Decimal(repr(value))
