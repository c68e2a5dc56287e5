"""Replace keywords that llguidance lacks by keywords that it supports.

A rewrite may drop valid values but never adds an invalid one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from quire.text.json_schema import unions
from quire.text.json_schema.complement import any_of
from quire.text.json_schema.counts import containing, counted_properties, names_under, unique_items
from quire.text.json_schema.numbers import strict_bounds
from quire.text.json_schema.scope import (
    ANNOTATIONS,
    DEFINITIONS,
    KEYWORDS,
    Schema,
    SchemaError,
    Scope,
    check_types,
)
from quire.text.json_schema.shapes import Shapes, upper
from quire.text.json_types import objects
from quire.text.string_formats import NARROWED
from quire.text.structures import REFUSED

_MAPS = ("properties", "patternProperties", *DEFINITIONS)
_ONES = ("items", "additionalItems", "additionalProperties")
_LISTS = ("items", "prefixItems", "allOf", "anyOf", "oneOf")
_ABOUT = frozenset(["not", "contains", "minContains", "maxContains", "propertyNames",
                    "uniqueItems", *unions.CONDITIONS, *unions.DEPENDENCIES])  # fmt: skip
"""Keywords that the result never has."""
_REWRITTEN = _ABOUT | {
    "oneOf", "minProperties", "maxProperties", "format", "exclusiveMinimum", "exclusiveMaximum"
}  # fmt: skip


def rewritten(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with the same values, or fewer, that llguidance supports.

    Raises:
        SchemaError: a keyword cannot be rewritten, or has a value of the wrong type.
    """
    if not any(value.keys() & _REWRITTEN for value in objects(schema)):
        return schema
    scope = Scope.of(schema)
    schema, moved = _without_deep_references(schema, scope)
    found: dict[str, Any] = _walk(schema, scope)
    if moved:
        found["$defs"] = {
            **found.get("$defs", {}),
            **{name: _defined(each, scope) for name, each in moved.items()},
        }
    return found


def _walk(schema: Any, scope: Scope) -> Any:
    """Return a schema without the keywords of `_ABOUT`."""
    if isinstance(schema, bool):
        return schema
    check_types(schema)
    scope.enter()
    try:
        return _walked(schema, scope)
    finally:
        scope.level -= 1


def _walked(schema: dict[str, Any], scope: Scope) -> Schema:
    own = strict_bounds(_with_subschemas(schema, scope))
    more: list[Schema] = []  # further schemas that must all hold
    kept = [each for each in schema.get("allOf", []) if not unions.is_condition(each)]
    ignored = frozenset() if scope.known("if") else unions.CONDITIONS  # by older drafts
    conditions = unions.conditions_of({word: schema[word] for word in schema.keys() - ignored})
    for each in schema.get("allOf", []):
        if unions.is_condition(each) and not ignored:
            check_types(each)
            conditions += unions.conditions_of(each)
    if "allOf" in own:
        own["allOf"] = [_walk(each, scope) for each in kept]
        if not kept:
            del own["allOf"]
    if own.get("format") in NARROWED:
        more += [{"pattern": pattern} for pattern in NARROWED[own.pop("format")]]
    if "propertyNames" in schema and scope.known("propertyNames"):
        more.append(names_under(schema["propertyNames"], scope))
    if schema.get("uniqueItems") is True and (orders := unique_items(schema, scope)) is not None:
        more.append(_union(orders))
    counts_items = "contains" in schema and scope.known("contains")
    if counts_items and (places := containing(schema)) is not None:
        more.append(_walk(_union(places), scope))
    within: Shapes = ()
    if "not" in schema or conditions or "oneOf" in schema:
        within = upper({**own, "allOf": [*own.get("allOf", []), *more]}, scope)
    if (counted := counted_properties(schema)) is not None:
        own = {word: each for word, each in own.items() if word not in _COUNTS}
        more.append(_union(counted))
    if "not" in schema:
        more.append(_walk(unions.without(schema["not"], within, scope), scope))
    if conditions:
        more.append(_walk(_union(unions.conditional(conditions, within, scope)), scope))
    if "oneOf" in schema:
        _write_one_of(schema["oneOf"], own, more, within, scope)
    return _joined(own, [each for each in more if each not in (True, {})])


def _defined(schema: Any, scope: Scope) -> Schema:
    """Return a rewritten definition; a failure becomes an error of llguidance where it is used."""
    try:
        return cast("Schema", _walk(schema, scope))
    except SchemaError as error:
        return {"type": f"{REFUSED}{error}"}


_COUNTS = ("minProperties", "maxProperties")


def _with_subschemas(schema: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """Return the keywords that stay, with rewritten subschemas."""
    own: dict[str, Any] = {}
    for word, value in schema.items():
        if word in _ABOUT:
            continue
        if word in DEFINITIONS:
            own[word] = {name: _defined(each, scope) for name, each in value.items()}
        elif word in _MAPS:
            own[word] = {name: _walk(each, scope) for name, each in value.items()}
        elif word in _ONES and not isinstance(value, list):
            own[word] = _walk(value, scope)
        elif word in _LISTS and word not in ("allOf", "oneOf"):
            own[word] = [_walk(each, scope) for each in value]
        else:
            own[word] = value
    return own


def _write_one_of(
    branches: list[Schema], own: dict[str, Any], more: list[Schema], within: Shapes, scope: Scope
) -> None:
    """Replace `oneOf` by a union at the same place, so that properties keep their order."""
    try:
        alone = unions.one_of(branches, within, scope)
    except SchemaError:  # llguidance itself can prove more branches disjoint
        if not all(_is_exact(each, scope) for each in branches):
            raise
        own["oneOf"] = [_walk(each, scope) for each in branches]
        return
    union = [_walk(each, scope) for each in alone]
    if not union or "anyOf" in own:
        own.pop("oneOf", None)
        more.append(_union(union))
        return
    renamed = {("anyOf" if word == "oneOf" else word): each for word, each in own.items()}
    own.clear()
    own.update({**renamed, "anyOf": union})


def _is_exact(schema: Schema, scope: Scope) -> bool:
    """Return whether llguidance supports a subschema completely, without rewriting.

    If a branch of `oneOf` lost values, the others would gain the values that they share with it.
    """
    seen: list[Any] = []
    stack: list[Any] = [schema]
    while stack:
        value = stack.pop()
        if isinstance(value, bool) or any(value is each for each in seen):
            continue
        seen.append(value)
        if value.keys() & _REWRITTEN - {"format"} or value.get("format") in NARROWED:
            return False
        if "$ref" in value:
            siblings = value.keys() & KEYWORDS - ANNOTATIONS - {"$ref"}
            target = scope.target(value["$ref"])
            if target is None or (siblings and scope.draft <= 7):  # which ignores them
                return False
            stack.append(target)
        for word, each in value.items():
            if word in _BY_NAME:
                stack += each.values()
            elif word in _SUBSCHEMAS:
                stack += each if isinstance(each, list) else [each]
    return True


def _union(schemas: list[Schema]) -> Schema:
    return any_of(schemas) if schemas else False


def _joined(own: dict[str, Any], more: list[Schema]) -> Schema:
    """Return a schema under which all `schemas` hold; its own properties come first."""
    if not more:
        return own
    if "allOf" not in own:
        return {**own, "allOf": more}
    about = {word: each for word, each in own.items() if word in ANNOTATIONS}
    rest = {word: each for word, each in own.items() if word not in ANNOTATIONS}
    return {**about, "allOf": [rest, *more]}


def _without_deep_references(
    schema: dict[str, Any], scope: Scope
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema with references only to named definitions, and the new definitions.

    Rewriting moves subschemas, so a reference into the middle of a schema would break.
    """
    moved: dict[str, Any] = {}
    names: dict[str, str] = {}

    def renamed(reference: str) -> str:
        if reference == "#" or not reference.startswith("#/") or _NAMED.fullmatch(reference):
            return reference
        if scope.opaque:
            raise SchemaError(f"$ref {reference!r} with a nested $id")
        if reference not in names:
            names[reference] = name = f"{_MOVED}{len(names)}"
            target = scope.target(reference)
            if target is None:
                raise SchemaError(f"$ref {reference!r} leads nowhere")
            moved[name] = copied(target)
        return f"#/$defs/{names[reference]}"

    def copied(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        found: dict[str, Any] = {}
        for word, each in value.items():
            if word == "$ref" and isinstance(each, str):
                found[word] = renamed(each)
            elif word in _BY_NAME and isinstance(each, dict):
                found[word] = {name: copied(one) for name, one in each.items()}
            elif word in _SUBSCHEMAS and isinstance(each, list):
                found[word] = [copied(one) for one in each]
            else:
                found[word] = copied(each) if word in _SUBSCHEMAS else each
        return found

    schema = copied(schema)
    definitions = schema.get("$defs", {})
    scope.root = {**schema, "$defs": {**definitions, **moved}} if moved else schema
    return schema, moved


_MOVED = "moved-"
_BY_NAME = frozenset([*_MAPS, *unions.DEPENDENCIES])
_NAMED = re.compile(r"#/(definitions|\$defs)/[^/]+")
_SUBSCHEMAS = frozenset([*_ONES, *_LISTS, "not", "if", "then", "else", "contains", "propertyNames"])
