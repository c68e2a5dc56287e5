"""Find the types of JSON values that a schema allows, without checking a value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

ALL = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
MAX_REFERENCES = 16
"""From one schema to the next."""
MAX_ALTERNATIVES = 256
"""Of a schema, those that are unions themselves counted."""

_INDEX = re.compile("0|[1-9][0-9]{0,8}")
_BY_KEYWORD = {
    "string": ("pattern", "minLength", "maxLength", "format"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties"),
}


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """Return the schema behind references to `root` and unions of one."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, dict):
            break
        unions = [schema[name] for name in ("allOf", "anyOf", "oneOf") if name in schema]
        target = schema.get("$ref")
        if isinstance(target, str) and target.startswith("#/"):
            schema = at_pointer(root, target[1:])
        elif len(unions) == 1 and isinstance(unions[0], list) and len(unions[0]) == 1:
            rest = {k: v for k, v in schema.items() if v is not unions[0]}
            if rest.keys() - {"title", "description", "default", "examples"}:
                break
            schema = unions[0][0]
        else:
            break
    return schema


def alternatives(schema: Any, root: Mapping[str, Any]) -> list[Any]:
    """Return the alternatives of a union of types or schemas.

    With more than `MAX_ALTERNATIVES`, or if a union contains itself, return `{}`, which allows all.
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
    """Return the types that a value may have: an upper bound."""
    return frozenset[str]().union(*map(_types_of_one, alternatives(schema, root)))


def type_of(value: Any) -> str:
    """Return a value's type; "integer" for a whole number."""
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


def at_pointer(root: Any, pointer: str) -> Any:
    """Return the value at a JSON pointer in a URI fragment; None if there is none."""
    if pointer and not pointer.startswith("/"):
        return None
    for part in pointer.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(root, Mapping):
            root = root.get(name)
        elif isinstance(root, list) and _INDEX.fullmatch(name) and int(name) < len(root):
            root = root[int(name)]
        else:
            return None
    return root


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object at any depth of decoded JSON."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield value
            stack += value.values()
        elif isinstance(value, list):
            stack += value
