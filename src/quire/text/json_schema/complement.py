"""Write the values that are invalid under a schema as schemas.

`complement` returns alternatives, each a schema whose values are all invalid under the given one.
So `not`, the `else` of a condition, and the "no other" of `oneOf` become unions. If a keyword's
opposite cannot be written completely, the result is not `exact`: its values are still all invalid,
but some invalid values are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial, reduce
from itertools import combinations, pairwise
from typing import Any, NamedTuple

from quire.text.json_schema.literals import all_but, matched_by
from quire.text.json_schema.scope import ANNOTATIONS, KEYWORDS, TYPES, Schema, Scope
from quire.text.json_schema.shapes import disjoint, kind_of

MAX_DEPTH = 12
"""Levels of subschemas and references."""
POSITIONS = 4
"""Positions of an array that may violate `items`."""


class Complement(NamedTuple):
    """Alternatives, and whether they are complete."""

    schemas: list[Schema]
    exact: bool = True

    def union(self, other: Complement) -> Complement:
        return Complement(self.schemas + other.schemas, self.exact and other.exact)

    def mapped(self, write: Callable[[Schema], Schema]) -> Complement:
        """Return `write` of the union; empty if there are no alternatives."""
        return Complement([write(any_of(self.schemas))] if self.schemas else [], self.exact)


_NOTHING = Complement([])
_UNKNOWN = Complement([], exact=False)


def _union(found: Iterable[Complement]) -> Complement:
    return reduce(Complement.union, found, _NOTHING)


def any_of(schemas: list[Schema]) -> Schema:
    """Write a union."""
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def all_of(schemas: list[Schema]) -> Schema:
    """Write an intersection."""
    return schemas[0] if len(schemas) == 1 else {"allOf": schemas}


def complement(schema: Any, scope: Scope, depth: int = 0) -> Complement:
    """Return schemas of values that are invalid under `schema`."""
    scope.pay()
    if schema is False:
        return Complement([{}])
    if schema is True:
        return _NOTHING
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return _UNKNOWN
    if "$ref" in schema:  # Up to draft 7 siblings are ignored, so violating them may be valid.
        siblings = schema.keys() & KEYWORDS - ANNOTATIONS - {"$ref"}
        target = scope.target(schema["$ref"])
        found = _UNKNOWN if target is None else complement(target, scope, depth + 1)
        return Complement(found.schemas, found.exact and (scope.draft <= 7 or not siblings))
    total = _NOTHING
    for keyword, value in schema.items():
        if keyword in ANNOTATIONS or not scope.known(keyword):
            continue
        if keyword in _SIMPLE:
            total = total.union(_SIMPLE[keyword](value, schema))
        elif keyword in _OF_SCHEMAS:
            total = total.union(_OF_SCHEMAS[keyword](value, schema, scope, depth + 1))
        elif keyword in _UNWRITTEN:
            total = total.union(_UNKNOWN)
    return total


def _not_type(value: Any, _: Mapping[str, Any]) -> Complement:
    kinds = [value] if isinstance(value, str) else list(value)
    others = [kind for kind in TYPES if kind not in kinds]
    if "integer" in kinds and "number" in others:  # No schema allows only fractions.
        others.remove("number")
        return Complement([{"type": others}] if others else [], exact=False)
    return Complement([{"type": others}] if others else [])


def _not_values(values: Any, _: Mapping[str, Any]) -> Complement:
    by_kind: dict[str, list[Any]] = {}
    for each in values:
        by_kind.setdefault(kind_of(each), []).append(each)
    others = [kind for kind in TYPES if kind not in by_kind]
    other = Complement([{"type": others}] if others else [])
    return _union([other, *(_not_values_of(kind, found) for kind, found in by_kind.items())])


def _not_values_of(kind: str, values: list[Any]) -> Complement:
    """Return the other values of the same type."""
    if kind == "string":
        pattern = all_but(values)
        return _UNKNOWN if pattern is None else Complement([{"type": kind, "pattern": pattern}])
    if kind == "boolean":
        left = [each for each in (True, False) if each not in values]
        return Complement([{"enum": left}] if left else [])
    if kind == "number":
        bounds = sorted(set(values))
        below: list[Schema] = [{"type": kind, "exclusiveMaximum": bounds[0]}]
        between: list[Schema] = [
            {"type": kind, "exclusiveMinimum": low, "exclusiveMaximum": high}
            for low, high in pairwise(bounds)
        ]
        return Complement([*below, *between, {"type": kind, "exclusiveMinimum": bounds[-1]}])
    if kind == "null":
        return _NOTHING
    what = "Items" if kind == "array" else "Properties"
    sizes = sorted(map(len, values))  # Values of another size differ; others are left out.
    schemas: list[Schema] = [{"type": kind, f"min{what}": sizes[-1] + 1}]
    if sizes[0] > 0:
        schemas.append({"type": kind, f"max{what}": sizes[0] - 1})
    return Complement(schemas, exact=sizes == [0])


def _limit(kind: str, word: str, step: int) -> Callable[[Any, Mapping[str, Any]], Complement]:
    """Return the opposite of a count: its bound moved by `step`, under the opposite keyword."""

    def write(value: Any, _: Mapping[str, Any]) -> Complement:
        bound = int(value) + step
        return Complement([{"type": kind, word: bound}] if bound >= 0 else [])

    return write


def _not_pattern(value: Any, _: Mapping[str, Any]) -> Complement:
    texts = matched_by(value)
    return _UNKNOWN if texts is None else _not_values_of("string", texts)


def _bound(
    strict: str, opposite: str, strict_opposite: str
) -> Callable[[Any, Mapping[str, Any]], Complement]:
    """Return the opposite of a bound, which the keyword `strict` makes exclusive in draft 4."""

    def write(value: Any, schema: Mapping[str, Any]) -> Complement:
        word = opposite if schema.get(strict) is True else strict_opposite
        return Complement([{"type": "number", word: value}])

    return write


def _strict_bound(opposite: str) -> Callable[[Any, Mapping[str, Any]], Complement]:
    """Return the opposite of an exclusive bound; in draft 4 the keyword is a flag of another."""

    def write(value: Any, _: Mapping[str, Any]) -> Complement:
        flag = isinstance(value, bool)
        return _NOTHING if flag else Complement([{"type": "number", opposite: value}])

    return write


def _not_required(value: Any, _: Mapping[str, Any]) -> Complement:
    return Complement([_object({name: False}) for name in value])


def _object(properties: dict[str, Schema], required: list[str] | None = None) -> Schema:
    return {"type": "object", "properties": properties, "required": required or []}


def _present(name: str, schema: Schema) -> Schema:
    """Return objects with a property that is valid under a schema."""
    return _object({name: schema}, [name])


def _present_and(name: str, schema: Schema) -> Schema:
    return all_of([_present(name, {}), schema])


def _not_properties(value: Any, _: Mapping[str, Any], scope: Scope, depth: int) -> Complement:
    return _union(
        complement(each, scope, depth).mapped(partial(_present, name))
        for name, each in value.items()
    )


def _not_additional(value: Any, schema: Mapping[str, Any], scope: Scope, depth: int) -> Complement:
    """Return objects with an additional property, and none of the named ones."""
    found = complement(value, scope, depth)
    if not found.schemas:
        return found
    named = schema.get("properties", {})
    if "patternProperties" in schema:
        return _UNKNOWN
    wrong = {
        "type": "object",
        "properties": dict.fromkeys(named, False),
        "additionalProperties": any_of(found.schemas),
        "minProperties": 1,
    }
    return Complement([wrong], exact=not named and value is False)


def _not_patterns(value: Any, _: Mapping[str, Any], scope: Scope, depth: int) -> Complement:
    """Return objects whose properties all match the pattern and have an invalid value."""
    total = _NOTHING
    for pattern, each in value.items():
        found = complement(each, scope, depth)
        wrong = found.mapped(partial(_all_named, pattern))
        total = total.union(Complement(wrong.schemas, exact=found.exact and not wrong.schemas))
    return total


def _all_named(pattern: str, schema: Schema) -> Schema:
    return {
        "type": "object",
        "patternProperties": {pattern: schema},
        "additionalProperties": False,
        "minProperties": 1,
    }


def _not_items(value: Any, schema: Mapping[str, Any], scope: Scope, depth: int) -> Complement:
    """Return arrays with an invalid item among the first `POSITIONS`."""
    if isinstance(value, list):
        return _not_prefix(value, schema, scope, depth)
    if "prefixItems" in schema:
        return _UNKNOWN
    found = complement(value, scope, depth)
    schemas = _union(found.mapped(partial(array_with, n)) for n in range(POSITIONS)).schemas
    return Complement(schemas, exact=found.exact and not schemas)


def _not_prefix(value: Any, _: Mapping[str, Any], scope: Scope, depth: int) -> Complement:
    return _union(
        complement(each, scope, depth).mapped(partial(array_with, position))
        for position, each in enumerate(value)
    )


def array_with(position: int, schema: Schema) -> Schema:
    """Return arrays with an item under `schema` at a position, in keywords of every draft."""
    first = [*([True] * position), schema]
    return {"type": "array", "items": first, "additionalItems": True, "minItems": len(first)}


def _not_contains(value: Any, schema: Mapping[str, Any], scope: Scope, depth: int) -> Complement:
    if schema.keys() & {"minContains", "maxContains"}:
        return _UNKNOWN
    found = complement(value, scope, depth)
    items = any_of(found.schemas) if found.schemas else False
    return Complement([{"type": "array", "items": items}], found.exact)


def _not_all(value: Any, _: Mapping[str, Any], scope: Scope, depth: int) -> Complement:
    return _union(complement(each, scope, depth) for each in value)


def _not_any(value: Any, _: Mapping[str, Any], scope: Scope, depth: int) -> Complement:
    found = [complement(each, scope, depth) for each in value]
    if not all(one.schemas for one in found):
        return Complement([], all(one.exact for one in found))
    unions = [any_of(one.schemas) for one in found]
    return Complement([all_of(unions)], all(one.exact for one in found))


def _not_one(value: Any, schema: Mapping[str, Any], scope: Scope, depth: int) -> Complement:
    """Return values valid under no branch, or under two."""
    pairs = [[a, b] for a, b in combinations(value, 2) if not disjoint(a, b, scope)]
    return _not_any(value, schema, scope, depth).union(Complement([all_of(pair) for pair in pairs]))


def _not_not(value: Any, _: Mapping[str, Any], scope: Scope, depth: int) -> Complement:
    return Complement([value])


def _not_condition(value: Any, schema: Mapping[str, Any], scope: Scope, depth: int) -> Complement:
    total = _NOTHING
    if "then" in schema:
        found = complement(schema["then"], scope, depth)
        total = total.union(found.mapped(lambda bad: all_of([value, bad])))
    if "else" in schema:
        unless, found = complement(value, scope, depth), complement(schema["else"], scope, depth)
        if unless.schemas and found.schemas:
            both = all_of([any_of(unless.schemas), any_of(found.schemas)])
            total = total.union(Complement([both]))
        total = Complement(total.schemas, total.exact and unless.exact and found.exact)
    return total


def _not_dependent(value: Any, _: Mapping[str, Any], scope: Scope, depth: int) -> Complement:
    wanted = {
        n: {"required": each} if isinstance(each, list) else each for n, each in value.items()
    }
    return _union(
        complement(each, scope, depth).mapped(partial(_present_and, name))
        for name, each in wanted.items()
    )


_SIMPLE: dict[str, Callable[[Any, Mapping[str, Any]], Complement]] = {
    "type": _not_type,
    "enum": _not_values,
    "const": lambda value, schema: _not_values([value], schema),
    "minimum": _bound("exclusiveMinimum", "maximum", "exclusiveMaximum"),
    "maximum": _bound("exclusiveMaximum", "minimum", "exclusiveMinimum"),
    "exclusiveMinimum": _strict_bound("maximum"),
    "exclusiveMaximum": _strict_bound("minimum"),
    "minLength": _limit("string", "maxLength", -1),
    "maxLength": _limit("string", "minLength", 1),
    "minItems": _limit("array", "maxItems", -1),
    "maxItems": _limit("array", "minItems", 1),
    "minProperties": _limit("object", "maxProperties", -1),
    "maxProperties": _limit("object", "minProperties", 1),
    "required": _not_required,
    "pattern": _not_pattern,
    "uniqueItems": lambda value, _: _UNKNOWN if value else _NOTHING,
}
_OF_SCHEMAS: dict[str, Callable[[Any, Mapping[str, Any], Scope, int], Complement]] = {
    "properties": _not_properties,
    "additionalProperties": _not_additional,
    "patternProperties": _not_patterns,
    "items": _not_items,
    "prefixItems": _not_prefix,
    "contains": _not_contains,
    "allOf": _not_all,
    "anyOf": _not_any,
    "oneOf": _not_one,
    "not": _not_not,
    "if": _not_condition,
    "dependencies": _not_dependent,
    "dependentRequired": _not_dependent,
    "dependentSchemas": _not_dependent,
}
_UNWRITTEN = frozenset(
    ["format", "multipleOf", "additionalItems", "propertyNames",
     "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"]
)  # fmt: skip
"""Keywords whose violations cannot be written."""
