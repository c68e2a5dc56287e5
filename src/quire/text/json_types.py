"""Which types of JSON values a schema allows, where that can be told without judging a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ALL = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
MAX_REFERENCES = 16
"""From one schema to the next."""
MAX_ALTERNATIVES = 256
"""Of a schema, those that are unions themselves counted."""

_BY_KEYWORD = {
    "string": ("pattern", "minLength", "maxLength", "format"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties"),
}


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """The schema that stands behind references to `root` and unions of one."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, dict):
            break
        unions = [schema[name] for name in ("allOf", "anyOf", "oneOf") if name in schema]
        target = schema.get("$ref")
        if isinstance(target, str) and target.startswith("#/"):
            schema = _at(root, target)
        elif len(unions) == 1 and isinstance(unions[0], list) and len(unions[0]) == 1:
            rest = {k: v for k, v in schema.items() if v is not unions[0]}
            if rest.keys() - {"title", "description", "default", "examples"}:
                break
            schema = unions[0][0]
        else:
            break
    return schema


def alternatives(schema: Any, root: Mapping[str, Any]) -> list[Any]:
    """The schemas of which one has to hold, where it is a union of types or of schemas.

    Of more than `MAX_ALTERNATIVES`, or a union that is a part of itself, nothing is said: `{}`.
    """
    left: list[Any] = [schema]
    found: list[Any] = []
    for _ in range(MAX_ALTERNATIVES):
        if not left:
            return found
        schema = resolved(left.pop(0), root)
        branches = None
        if isinstance(schema, dict):
            branches = schema.get("anyOf", schema.get("oneOf"))
            kinds = schema.get("type")
            if branches is None and isinstance(kinds, list):
                branches = [{**schema, "type": kind} for kind in kinds]
        if isinstance(branches, list):
            left = [*branches, *left]
        else:
            found.append(schema)
    return [{}]


def allowed_types(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Types that a value may have; more than there are where the schema does not say."""
    return frozenset[str]().union(*map(_types_of_one, alternatives(schema, root)))


def type_of(value: Any) -> str:
    """A value's own type; of a whole number "integer"."""
    kinds: dict[type, str] = {
        bool: "boolean", int: "integer", float: "number", str: "string", list: "array",
        dict: "object",
    }  # fmt: skip
    return kinds.get(type(value), "null")


def _types_of_one(schema: Any) -> frozenset[str]:
    if not isinstance(schema, dict):
        return ALL if schema is True else frozenset()
    if "const" in schema:
        return frozenset({type_of(schema["const"])})
    if isinstance(values := schema.get("enum"), list):
        return frozenset(map(type_of, values))
    kind = schema.get("type")
    if kind is None:
        kind = next((k for k, words in _BY_KEYWORD.items() if schema.keys() & set(words)), None)
    if kind == "number":
        return frozenset({"number", "integer"})
    return frozenset({kind}) if isinstance(kind, str) else ALL


def _at(root: Any, pointer: str) -> Any:
    """What a JSON pointer leads to; nothing, if it leads nowhere."""
    for part in pointer[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        root = root.get(name) if isinstance(root, Mapping) else None
    return root
