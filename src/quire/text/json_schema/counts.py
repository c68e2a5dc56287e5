"""Keywords that count or compare: properties, property names, unique items, `contains`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, permutations
from math import comb, perm
from typing import Any

from quire.text.json_schema.complement import array_with
from quire.text.json_schema.scope import MAX_ALTERNATIVES, TYPES, Names, Schema, SchemaError, Scope
from quire.text.json_schema.shapes import disjoint, upper

CONTAINS_POSITIONS = 8
"""Positions of an array that may have the item required by `contains`."""
MAX_PERMUTATIONS = 120
"""Most orders of unique items."""
NOT_ARRAY: Schema = {"type": [kind for kind in TYPES if kind != "array"]}


def counted_properties(schema: Mapping[str, Any]) -> list[Schema] | None:
    """Return `minProperties` and `maxProperties` as alternatives; None if llguidance suffices.

    llguidance counts only unnamed properties. So each alternative fixes which optional named ones
    are present. With `minProperties` alone, further ones stay optional.
    """
    low, high = schema.get("minProperties", 0), schema.get("maxProperties")
    properties, required = schema.get("properties", {}), set(schema.get("required", []))
    extra = schema.get("additionalProperties") is not False or "patternProperties" in schema
    if (alone := Names.of(schema)) is not None:
        properties = {**dict.fromkeys(alone.names, True), **properties}
        extra = bool(alone.patterns)
    optional = [n for n, each in properties.items() if n not in required and each is not False]
    spare = max(0, low - len(required))
    room = None if high is None else high - len(required)
    if room is not None and not extra and room >= len(optional):
        room = None
    if not optional or (spare == 0 and room is None):
        return None
    if not extra and spare <= 1 and room in (None, 1):  # llguidance's own case
        return None
    most = len(optional) if room is None else min(len(optional), max(room, 0))
    tried = range(most + 1) if room is not None else range(min(spare, most) + 1)
    sizes = [k for k in tried if extra or k >= spare]
    if sum(comb(len(optional), k) for k in sizes) > MAX_ALTERNATIVES:
        raise SchemaError("minProperties or maxProperties: too many optional properties")
    bounds = {word: schema[word] for word in ("minProperties", "maxProperties") if word in schema}
    found: list[Schema] = []
    for size in sizes:
        enough = room is None and size >= spare
        for names in combinations(optional, size):
            absent = {} if enough else {n: False for n in optional if n not in names}
            one: dict[str, Any] = {"properties": absent, "required": list(names)}
            found.append(one if enough else {**one, **bounds})
    return found


def names_under(schema: Schema, scope: Scope) -> Schema:
    """Return a schema of objects whose property names are valid under `schema`.

    Raises:
        SchemaError: it is more than one pattern, one pair of lengths, or one list of names.
    """
    texts = [shape for shape in upper(schema, scope) if shape.kind == "string"]
    if not texts:
        return {"maxProperties": 0}
    while isinstance(schema, dict) and "$ref" in schema:
        schema = scope.target(schema["$ref"])
        scope.pay()
    words = (
        schema.keys() - {"type", "title", "description", "$comment"}
        if (isinstance(schema, dict))
        else set[str]()
    )
    if schema is True or not words:
        return True
    assert isinstance(schema, dict)
    if words <= {"enum", "const"}:
        names = [name for shape in texts for name in (shape.values or {}).values()]
        return {"properties": dict.fromkeys(names, True), "additionalProperties": False}
    if words == {"pattern"}:
        pattern = schema["pattern"]
    elif words <= {"minLength", "maxLength"}:
        pattern = f"^(?s:.){{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}$"
    else:
        raise SchemaError("propertyNames: only a pattern, lengths, or enum can be followed")
    return {"patternProperties": {pattern: True}, "additionalProperties": False}


def unique_items(schema: Mapping[str, Any], scope: Scope) -> list[Schema] | None:
    """Return `uniqueItems` as alternatives; None if the items are always unique.

    Raises:
        SchemaError: two items could be equal, and there are too many orders to list.
    """
    most = schema.get("maxItems")
    if most is not None and most <= 1:
        return None
    items = schema.get("items", True)
    fixed = items if isinstance(items, list) else schema.get("prefixItems", [])
    rest = schema.get("additionalItems", True) if isinstance(items, list) else items
    if fixed:
        closed = rest is False or (most is not None and most <= len(fixed))
        if closed and all(disjoint(a, b, scope) for a, b in combinations(fixed, 2)):
            return None
        raise SchemaError("uniqueItems: items of a tuple could be equal")
    values: list[Any] = []
    for shape in upper(rest, scope):
        if shape.kind in ("null", "boolean") and shape.values is None:
            values += [None] if shape.kind == "null" else [True, False]
        elif shape.values is not None:
            values += shape.values.values()
        else:
            raise SchemaError("uniqueItems: a grammar cannot compare items; use enum or maxItems 1")
    length = len(values) if most is None else min(most, len(values))
    if perm(len(values), length) > MAX_PERMUTATIONS:
        raise SchemaError("uniqueItems: the items have too many orders")
    orders: list[Schema] = [
        {
            "type": "array",
            "items": [{"enum": [value]} for value in order],
            "additionalItems": False,
            "maxItems": length,
        }
        for order in permutations(values, length)
    ]
    return orders if schema.get("type") == "array" else [*orders, NOT_ARRAY]


def containing(schema: Mapping[str, Any]) -> list[Schema] | None:
    """Return `contains` as alternatives by position; None if it has no effect.

    Raises:
        SchemaError: the schema counts such items.
    """
    wanted = schema["contains"]
    if schema.get("minContains", 1) == 0 and "maxContains" not in schema:
        return None
    if schema.get("minContains", 1) != 1 or "maxContains" in schema:
        raise SchemaError("minContains or maxContains: items cannot be counted")
    most = min(schema.get("maxItems", CONTAINS_POSITIONS), CONTAINS_POSITIONS)
    found = [array_with(place, wanted) for place in range(most)]
    return found if schema.get("type") == "array" else [*found, NOT_ARRAY]
