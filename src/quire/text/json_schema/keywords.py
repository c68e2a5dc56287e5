"""Keywords that llguidance ignores, follows incorrectly, or knows by another name."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

from quire.text.json_schema.multiples import too_many_remainders
from quire.text.json_types import resolved
from quire.text.string_formats import FORMATS, NARROWED

MAX_DEPTH = 100
"""Deepest nesting of a schema."""
MIN_NUMBER = -(2**63) + 1024
"""In a schema: llguidance overflows its stack on integers that are -2**63 as a float, or less."""
DIGITS = 14
"""Digits of a bound; llguidance reads longer ones inexactly."""
NEAR_ZERO = 20
"""Decimal places of the bound that replaces an exclusive 0."""
LARGEST = 10**12
"""Largest bound for which `DIGITS` digits leave room for a fraction."""

MAPS = ("properties", "patternProperties", "definitions", "$defs")
"""Keywords that hold schemas by names."""
SCHEMAS = ("items", "prefixItems", "additionalItems", "additionalProperties", "allOf", "anyOf",
           "oneOf")  # fmt: skip
"""Keywords that hold a schema, or several."""
_UNEVALUATED = {"unevaluatedProperties": "additionalProperties", "unevaluatedItems": "items"}
_OF_THE_SAME = {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas",
                "dependencies", "contains", "$ref", "$dynamicRef", "$recursiveRef"}  # fmt: skip
"""Keywords whose schemas describe the same value."""
_COUNTS = {f"{bound}{what}" for bound in ("min", "max")
           for what in ("Length", "Items", "Properties")}  # fmt: skip
_PASSED_OVER = ("contentEncoding", "contentMediaType", "contentSchema")
_DEPENDENCIES = ("dependencies", "dependentRequired", "dependentSchemas")
_REMARKS = {"type", "title", "description", "$comment"}
_STRICT = (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1))


class SchemaError(ValueError):
    """A schema that cannot be followed; the text has the keyword and the reason."""


def check_schema(schema: Any) -> None:
    """Raise `SchemaError` for what llguidance compiles incorrectly or without end."""
    _check_depth(schema)
    _check_keywords(schema, root=True)
    if reason := too_many_remainders(schema):
        raise SchemaError(reason)


def mapped(schema: dict[str, Any], write: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a schema with `write` of each subschema."""
    found = dict(schema)
    for keyword, value in schema.items():
        if keyword in MAPS and isinstance(value, dict):
            found[keyword] = {name: write(each) for name, each in value.items()}
        elif keyword in SCHEMAS:
            many = isinstance(value, list)
            found[keyword] = [write(each) for each in value] if many else write(value)
    return found


def simplified(schema: Any, root: dict[str, Any]) -> Any:
    """Return a schema with the same values, or fewer, in keywords that llguidance knows.

    Args:
        root: the schema that references refer to.
    """
    if not isinstance(schema, dict):
        return schema
    found = mapped(schema, partial(simplified, root=root))
    _use_older_names(found, root)
    _use_exact_bounds(found)
    for keyword in found.keys() & _COUNTS:
        if isinstance(found[keyword], float) and found[keyword].is_integer():
            found[keyword] = int(found[keyword])
    if found.get("uniqueItems") is False:
        del found["uniqueItems"]
    more: list[Any] = []  # further schemas that must hold
    form = found.get("format")
    if isinstance(form, str) and form not in FORMATS:  # by JSON Schema, most others are remarks
        more += [{"pattern": each} for each in NARROWED.get(form, ())]
        del found["format"]
    if "propertyNames" in found:
        names = _names_under(resolved(found["propertyNames"], root))
        if names is not None:
            del found["propertyNames"]
            more += [names] if names else []
    more += _without_dependencies(found, root)
    if more and isinstance(found.get("allOf", []), list):
        found["allOf"] = [*found.get("allOf", []), *more]
    return found


def _check_keywords(schema: Any, *, root: bool = False) -> Any:
    """Refuse keywords that llguidance ignores silently; it reports the others itself."""
    if not isinstance(schema, dict):
        return
    for keyword in _PASSED_OVER:
        if keyword in schema:
            raise SchemaError(f'Unimplemented keys: ["{keyword}"]')
    is_local = str(schema.get("$ref")).startswith("#")  # the root's own `$id` cannot change it
    if "$ref" in schema and "$id" in schema and not (root and is_local):
        raise SchemaError("$id next to $ref")
    mapped(schema, _check_keywords)


def _check_depth(schema: Any) -> None:
    level = [schema]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, int | float) and value < MIN_NUMBER:
                raise SchemaError(f"the number {value} is too small")
            if isinstance(value, int) and value >= 2**64:  # llguidance would round it
                raise SchemaError(f"the number {value} has more than 64 bits")
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        if not inner:
            return
        level = inner
    raise SchemaError(f"the schema is nested deeper than {MAX_DEPTH}")


def _use_older_names(schema: dict[str, Any], root: dict[str, Any]) -> None:
    """Write `additionalProperties` and `items` for `unevaluated…`, if no other schema describes the
    same value: they mean the same then."""
    if schema.keys() & _OF_THE_SAME:
        return
    tuple_items = isinstance(schema.get("items"), list)
    for newer, older in _UNEVALUATED.items():
        if newer in schema:
            name = "additionalItems" if older == "items" and tuple_items else older
            schema.setdefault(name, simplified(schema.pop(newer), root))


def _use_exact_bounds(schema: dict[str, Any]) -> None:
    """Replace exclusive bounds that are whole numbers.

    llguidance accepts `0` between an exclusive 0 and 0.5: if both bounds have the same integer
    part, it ignores that one is exclusive. An inclusive bound next to it excludes it, such as
    1.0000000000001 for 1.
    """
    for strict, plain, end in _STRICT:
        bound = schema.get(strict)
        if bound is True:  # draft 4
            bound = schema.get(plain)
        if bound is None or schema.get("type") == "integer" or not _is_whole(bound):
            continue
        places = len(str(abs(int(bound)))) - DIGITS if bound else -NEAR_ZERO
        step = Decimal(1).scaleb(places)
        following = float(int(bound) + step.copy_sign(Decimal(end)))
        own = schema.get(plain, following)
        if isinstance(own, int | float):
            del schema[strict]
            schema[plain] = max(own, following) if end > 0 else min(own, following)


def _without_dependencies(schema: dict[str, Any], root: dict[str, Any]) -> list[Any]:
    """Remove dependencies, and a `not` of `required`; return schemas that mean the same."""
    found: list[Any] = []
    for keyword in _DEPENDENCIES:
        if isinstance(schema.get(keyword), dict):
            for name, wanted in schema.pop(keyword).items():
                then = {"required": wanted} if isinstance(wanted, list) else wanted
                found.append({"anyOf": [_without(name), simplified(then, root)]})
    match schema.get("not"):
        case {"required": [*names], **rest} if names and not rest:
            del schema["not"]
            found.append({"type": "object", "anyOf": [_without(name) for name in names]})
    return found


def _without(name: str) -> dict[str, Any]:
    return {"properties": {name: False}}


def _is_whole(bound: Any) -> bool:
    if isinstance(bound, bool) or not isinstance(bound, int | float) or abs(bound) > LARGEST:
        return False
    return float(bound).is_integer()


def _names_under(schema: Any) -> dict[str, Any] | None:
    """Return a schema of objects with such property names: {} for all, None if it has none."""
    words = schema.keys() - _REMARKS if isinstance(schema, dict) else {"boolean"}
    if isinstance(schema, dict) and schema.get("type", "string") != "string":
        return None
    if schema is True or not words:
        return {}
    if words in ({"enum"}, {"const"}):
        names = schema.get("enum", [schema.get("const")])
        allowed = {name: True for name in names if isinstance(name, str)}
        return {"properties": allowed, "additionalProperties": False}
    if words == {"pattern"}:
        pattern = schema["pattern"]
    elif words <= {"minLength", "maxLength"}:
        pattern = f"^(?s:.){{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}$"
    else:
        return None
    return {"patternProperties": {pattern: True}, "additionalProperties": False}
