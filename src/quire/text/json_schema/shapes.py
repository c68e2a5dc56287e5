"""Upper bounds of schemas, to prove that no value is valid under two of them.

A schema's upper bound is a union of shapes. Every valid value lies in a shape; invalid values may,
too. Two schemas are disjoint if no shape of one overlaps a shape of the other. Unsupported keywords
are ignored, which only makes the bound wider.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from quire.system.records import dataclass
from quire.text.json_schema.literals import matched_by
from quire.text.json_schema.scope import TYPES, Schema, Scope, canonical, listed
from quire.text.json_types import type_of

MAX_SHAPES = 48
"""Most shapes of one schema; a keyword that would exceed it is ignored."""
MAX_DEPTH = 4
"""Levels of properties and references to follow."""


@dataclass(frozen=True)
class Members:
    """The properties of an object by one schema.

    Attributes:
        others: the schema of other properties; True if there is none.
        depth: number of levels above it.
    """

    properties: Mapping[str, Any]
    others: Any
    depth: int


@dataclass(frozen=True)
class Shape:
    """Values of one type.

    Attributes:
        values: the only values, by `canonical`; None for any.
        low, high: bounds of a number, or of the length of a string or array.
        low_open, high_open: whether the bound itself is excluded.
        members: properties by several schemas, which all hold.
    """

    kind: str
    values: Mapping[str, Any] | None = None
    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    integer: bool = False
    required: frozenset[str] = frozenset()
    members: tuple[Members, ...] = ()

    def allows(self, name: str, scope: Scope) -> bool:
        """Return whether the property may be present: no two of its schemas are disjoint."""
        scope.pay(len(self.members) // 4)
        said = [(each.properties.get(name, each.others), each.depth) for each in self.members]
        said = [(schema, depth) for schema, depth in said if schema not in (True, {})]
        if any(schema is False for schema, _ in said):
            return False
        if len(said) < 2:
            return True
        key = tuple((id(schema), depth) for schema, depth in said)
        if key not in scope.met:
            found = ANY
            for schema, depth in said:
                found = meet(found, upper(schema, scope, depth + 1), scope)
            scope.met[key] = said, bool(found)
        return scope.met[key][1]


Shapes = tuple[Shape, ...]
ANY: Shapes = tuple(Shape(kind) for kind in TYPES)


def disjoint(one: Schema, other: Schema, scope: Scope, within: Shapes = ANY) -> bool:
    """Return whether provably no value of `within` is valid under both schemas."""
    return not meet(meet(within, upper(one, scope), scope), upper(other, scope), scope)


def upper(schema: Any, scope: Scope, depth: int = 0) -> Shapes:
    """Return shapes that contain every valid value."""
    if isinstance(schema, bool):
        return ANY if schema else ()
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return ANY
    key = id(schema), depth
    if key not in scope.memo:
        scope.pay()
        scope.memo[key] = schema, _upper(schema, scope, depth)
    found: Shapes = scope.memo[key][1]
    return found


def _upper(schema: dict[str, Any], scope: Scope, depth: int) -> Shapes:
    if "$ref" in schema:  # Up to draft 7 its siblings are ignored.
        target = scope.target(schema["$ref"])
        return ANY if target is None else upper(target, scope, depth + 1)
    own = [_filled(each, scope) for each in _own(schema, depth)]
    found = tuple(each for each in own if each is not None)
    for part in _applied(schema, scope, depth):
        found = meet(found, part, scope)
    return found


def meet(one: Shapes, other: Shapes, scope: Scope) -> Shapes:
    """Return shapes of the values that lie in both unions."""
    pairs = [(a, b) for a in one for b in other if a.kind == b.kind]
    scope.pay(len(pairs))
    met = tuple(shape for a, b in pairs if (shape := _meet(a, b, scope)) is not None)
    return met if len(met) <= MAX_SHAPES else one


def _applied(schema: Mapping[str, Any], scope: Scope, depth: int) -> Iterable[Shapes]:
    values = schema.get("enum")
    if isinstance(values, list):
        yield _values(values)
    if "const" in schema and scope.known("const"):
        yield _values([schema["const"]])
    texts = matched_by(schema.get("pattern"))
    if texts is not None:
        yield (*(shape for shape in ANY if shape.kind != "string"), *_values(texts))
    for each in listed(schema.get("allOf")):
        yield upper(each, scope, depth + 1)
    for union in ("anyOf", "oneOf"):
        if branches := listed(schema.get(union)):
            yield tuple(shape for each in branches for shape in upper(each, scope, depth + 1))


def _own(schema: Mapping[str, Any], depth: int) -> Iterable[Shape]:
    """Return shapes by the schema's type and the keywords of each type."""
    kinds = schema.get("type", list(TYPES))
    for kind in [kinds] if isinstance(kinds, str) else listed(kinds):
        if kind == "integer" and "number" not in listed(kinds):
            yield replace(_number(schema), integer=True)
        elif kind == "number":
            yield _number(schema)
        elif kind in ("string", "array"):
            words = ("minLength", "maxLength") if kind == "string" else ("minItems", "maxItems")
            low, high = _size(schema.get(words[0]), 0), _size(schema.get(words[1]), math.inf)
            yield Shape(kind, low=low, high=high)
        elif kind == "object":
            yield _object(schema, depth)
        elif kind in TYPES:
            yield Shape(kind)


def _number(schema: Mapping[str, Any]) -> Shape:
    bounds: list[tuple[float, bool]] = []
    for word, sign in (("inimum", 1), ("aximum", -1)):
        plain, strict = schema.get("m" + word), schema.get("exclusiveM" + word)
        found = [(sign * _size(plain, -math.inf * sign), strict is True)]
        found.append((sign * _size(strict, -math.inf * sign), True))
        bounds.append(max(found))
    (low, low_open), (high, high_open) = bounds
    return Shape("number", low=low, low_open=low_open, high=-high, high_open=high_open)


def _object(schema: Mapping[str, Any], depth: int) -> Shape:
    required = frozenset(n for n in listed(schema.get("required")) if isinstance(n, str))
    given = schema.get("properties")
    properties = given if isinstance(given, dict) else {}
    others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
    members = (Members(properties, others, depth),) if properties or others is not True else ()
    return Shape("object", required=required, members=members)


def _values(values: list[Any]) -> Shapes:
    """Return one shape per type for the values."""
    by_kind: dict[str, dict[str, Any]] = {}
    for value in values:
        by_kind.setdefault(kind_of(value), {})[canonical(value)] = value
    return tuple(Shape(kind, values=found) for kind, found in by_kind.items())


def _meet(a: Shape, b: Shape, scope: Scope) -> Shape | None:
    low, low_open = max((a.low, a.low_open), (b.low, b.low_open))
    high, high_closed = min((a.high, not a.high_open), (b.high, not b.high_open))
    values = a.values if b.values is None else b.values
    if a.values is not None and b.values is not None:
        values = {key: value for key, value in a.values.items() if key in b.values}
    known = set(map(id, a.members))
    members = (*a.members, *(each for each in b.members if id(each) not in known))
    met = Shape(
        a.kind, values, low, high, low_open, not high_closed,
        a.integer or b.integer, a.required | b.required, members,
    )  # fmt: skip
    return _filled(met, scope)


def _filled(shape: Shape, scope: Scope) -> Shape | None:
    """Return the shape without values outside its bounds; None if no value is left."""
    empty = shape.low == shape.high and (shape.low_open or shape.high_open)
    if shape.low > shape.high or empty:
        return None
    if not all(shape.allows(name, scope) for name in shape.required):
        return None
    if shape.values is None:
        return shape
    scope.pay(len(shape.values) // 8)
    values = {key: value for key, value in shape.values.items() if _fits(value, shape, scope)}
    return replace(shape, values=values) if values else None


def _fits(value: Any, shape: Shape, scope: Scope) -> bool:
    if shape.kind == "object":
        return shape.required <= value.keys() and all(shape.allows(n, scope) for n in value)
    if shape.kind == "number":
        if shape.integer and isinstance(value, float) and not value.is_integer():
            return False
        size = value
    elif shape.kind in ("string", "array"):
        size = len(value)
    else:
        return True
    above = size > shape.low or (size == shape.low and not shape.low_open)
    return above and (size < shape.high or (size == shape.high and not shape.high_open))


def kind_of(value: Any) -> str:
    """Return the type of a JSON value; every number is a "number"."""
    kind = type_of(value)
    return "number" if kind == "integer" else kind


def _size(value: Any, default: float) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else default
