"""Write schemas with bounded numbers as a Lark grammar around JSON schemas of their parts.

A JSON schema cannot contain regular expressions for numbers. So objects, arrays, unions and
references on the path to a bounded number become rules. Other parts stay JSON schemas that
llguidance compiles, as do parts without a rule: these only lose scientific notation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from quire.system.records import dataclass
from quire.text.composition import array
from quire.text.json_schema import scope
from quire.text.json_schema.numbers import scientific

MAX_LEAVES = 200
"""Most parts that stay JSON schemas."""
MAX_BYTES = 2**20
"""Most characters of these parts together, with their definitions."""
MAX_ITEMS = 64
"""Largest `minItems` or `maxItems` of an array that becomes a rule."""
_BOUNDS = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
_EMPTY = '""'
_STRING = r'/"([^"\\\x00-\x1F\x7F]|\\["\\bfnrt])*"/'


class _StaysError(Exception):
    """The schema cannot become a grammar and stays unchanged."""


@dataclass
class Skeleton:
    """A grammar being written.

    Attributes:
        leaves: JSON of a part → its name; the grammar refers to it by `@name`.
        rules: reference → name of the definition's rule.
        reaches: reference → whether the definition leads to a bounded number.
    """

    root: Mapping[str, Any]
    lines: list[str] = field(default_factory=list)
    leaves: dict[str, str] = field(default_factory=dict)
    rules: dict[str, str] = field(default_factory=dict)
    reaches: dict[str, bool] = field(default_factory=dict)


def with_exponents(schema: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the rules, and the schemas by name.

    Returns None if no path leads to a bounded number, or the grammar would be too large.
    """
    out = Skeleton(schema)
    if not _simple_references(schema) or not _reaches(schema, out):
        return None
    try:
        start = _value(schema, out)
    except _StaysError:
        return None
    lines = [f"start: {start}", *out.lines, f"STRING: {_STRING}"]
    return "\n".join(lines), {name: json.loads(text) for text, name in out.leaves.items()}


def is_bounded(schema: Any) -> bool:
    """Return whether a schema is just a number with bounds."""
    return (
        isinstance(schema, dict)
        and schema.get("type") == "number"
        and not _words(schema) - _BOUNDS - {"type"}
        and bool(schema.keys() & _BOUNDS)
    )


def _words(schema: Mapping[str, Any]) -> set[str]:
    return schema.keys() & scope.KEYWORDS - scope.ANNOTATIONS


def _form(schema: Any) -> str:
    """Return the kind of rule for a schema, or "leaf" for none."""
    try:
        scope.check_types(schema)
    except scope.SchemaError:
        return "leaf"
    words = _words(schema)
    if is_bounded(schema):
        return "number"
    if words == {"$ref"}:
        return "reference"
    if words == {"anyOf"}:
        return "union"
    if schema.get("type") == "object" and "properties" in words:
        fits = words <= {"type", "properties", "required", "additionalProperties"}
        return "object" if fits else "leaf"
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        fits = words <= {"type", "items", "minItems", "maxItems"}
        low, high = schema.get("minItems", 0), schema.get("maxItems", 0)
        return "array" if fits and low <= MAX_ITEMS and high <= MAX_ITEMS else "leaf"
    return "leaf"


def _reaches(schema: Any, out: Skeleton) -> bool:
    """Return whether a rule of the schema would contain a bounded number."""
    match _form(schema):
        case "number":
            return True
        case "union":
            return any(_reaches(each, out) for each in schema["anyOf"])
        case "array":
            return _reaches(schema["items"], out)
        case "object":
            inner = [*schema["properties"].values(), schema.get("additionalProperties")]
            return any(_reaches(each, out) for each in inner)
        case "reference":
            reference = schema["$ref"]
            if reference not in out.reaches:
                out.reaches[reference] = False  # ends circles of references
                out.reaches[reference] = _reaches(_definition(reference, out.root), out)
            return out.reaches[reference]
    return False


def _value(schema: Any, out: Skeleton) -> str:
    """Return the expression of a value."""
    if not _reaches(schema, out):
        return _leaf(schema, out)
    match _form(schema):
        case "number":
            exponents = scientific(schema)
            plain = _leaf(schema, out)
            return f"({plain} | /{exponents}/)" if exponents else plain
        case "union":
            return f"({' | '.join(_value(each, out) for each in schema['anyOf'])})"
        case "array":
            item = _value(schema["items"], out)
            return f"({array(item, schema.get('minItems', 0), schema.get('maxItems'))})"
        case "object":
            return _object(schema, out)
        case _:
            reference = schema["$ref"]
            if reference not in out.rules:
                name = out.rules[reference] = f"definition_{len(out.rules)}"
                _rule(name, _value(_definition(reference, out.root), out), out)
            return out.rules[reference]


def _object(schema: Mapping[str, Any], out: Skeleton) -> str:
    """Write the properties in order, then the additional ones."""
    given, required = schema["properties"], schema.get("required", [])
    others = schema.get("additionalProperties", True)
    names = [*given, *(name for name in required if name not in given)]
    more = first = ""
    if others is not False:
        taken = " | ".join(_quoted(name) for name in names)
        key = f"STRING & ~({taken})" if taken else "STRING"
        number = len(out.lines)
        out.lines.append(f"KEY_{number}: {key}")
        pair = f'KEY_{number} ":" {_value(others, out)}'
        more = _rule(f"more_{number}", f'("," {pair})*', out)
        first = _rule(f"first_{number}", f"({pair} {more})?", out)
    for name in reversed(names):
        each = given.get(name, others)
        if each is False and name not in required:
            continue
        pair = f'{_quoted(name)} ":" {_value(each, out)} {more}'
        number = len(out.lines)
        if name in required:
            first = _rule(f"first_{number}", pair, out)
            more = _rule(f"more_{number}", f'"," {first}', out)
        else:
            here = _rule(f"here_{number}", pair, out)
            first = _rule(f"first_{number}", f"{here} | {first or _EMPTY}", out)
            more = _rule(f"more_{number}", f'"," {here} | {more or _EMPTY}', out)
    return f'("{{" {first} "}}")'


def _rule(name: str, body: str, out: Skeleton) -> str:
    out.lines.append(f"{name}: {body}")
    return name


def _leaf(schema: scope.Schema, out: Skeleton) -> str:
    """Add a part that stays a JSON schema, with its definitions."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise _StaysError
    about = {"$schema": out.root["$schema"]} if "$schema" in out.root else {}
    whole = {**about, **schema, **_needed(schema, out.root)}
    text = json.dumps(whole)
    if text not in out.leaves:
        out.leaves[text] = f"leaf_{len(out.leaves)}"
        if len(out.leaves) > MAX_LEAVES or sum(map(len, out.leaves)) > MAX_BYTES:
            raise _StaysError
    return f"@{out.leaves[text]}"


def _needed(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definitions that a schema refers to, directly or not."""
    found: dict[str, dict[str, Any]] = {}
    stack = [schema]
    while stack:
        for reference in _references(stack.pop()):
            _, word, name = reference.split("/")
            target = _definition(reference, root)
            name = name.replace("~1", "/").replace("~0", "~")
            if name not in found.setdefault(word, {}):
                found[word][name] = target
                stack.append(target)
    return found


def _definition(reference: str, root: Mapping[str, Any]) -> Any:
    _, word, name = reference.split("/")
    return root.get(word, {}).get(name.replace("~1", "/").replace("~0", "~"))


def _references(value: Any) -> list[str]:
    stack = [value]
    found: list[str] = []
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            found += [each for word in ("$id", "$ref") if isinstance(each := value.get(word), str)]
            stack += [each for word, each in value.items() if word not in scope.DEFINITIONS]
        elif isinstance(value, list):
            stack += value
    return found


def _simple_references(schema: dict[str, Any]) -> bool:
    """Return whether all references are to named definitions, so that parts can be separated."""
    if "$id" in schema or "id" in schema:
        return False
    stack: list[Any] = [schema, *(schema.get(word, {}) for word in scope.DEFINITIONS)]
    return all(
        _PLAIN.fullmatch(reference) and _definition(reference, schema) is not None
        for each in stack
        for reference in _references(each)
    )


_PLAIN = re.compile(r"#/(definitions|\$defs)/[^/%]+")


def _quoted(name: str) -> str:
    """Return a property's name in JSON as a Lark string."""
    return json.dumps(json.dumps(name, ensure_ascii=False), ensure_ascii=False)
