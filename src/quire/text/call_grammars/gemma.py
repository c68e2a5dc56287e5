"""Calls of Gemma 4, which writes texts between marks: see `server/tools/gemma`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from quire.text.call_grammars import writing
from quire.text.composition import array, pieces, until
from quire.text.json_types import alternatives

_QUOTE = '<|"|>'
_KEY = re.compile(r"[^\s<>{}\[\]:,]{1,256}")
_OF_LISTS = {"type", "items", "minItems", "maxItems"}
_SCALARS = {"number", "integer", "boolean", "null"}


def gemma4(out: writing.Writing, functions: Sequence[writing.Function]) -> None:
    """Return the grammar: `<|tool_call>` begins a call anywhere."""
    out.rule("TEXT", writing.ANY)
    out.rule("RAW", writing.without(writing.ANY, [] if _QUOTE in out.specials else [_QUOTE]))
    calls = []
    for index, function in enumerate(functions):
        if not _KEY.fullmatch(function.name):
            raise ValueError(f"{function.name!r} is no name of a function in this format")
        arguments = _arguments(out, function, index)
        calls.append(f'{writing.quoted(f"call:{function.name}" + "{")} {arguments} "}}"')
    first, *rest = pieces("<|tool_call>", out.specials)
    if out.otherwise is not None:
        out.rule("call", *calls)
        out.start(" ".join([first, *rest, "call", out.text("<tool_call|>")]))
        return
    out.lines.append(until("wrapped", [[first]]))
    out.rule("call", *calls)
    end = out.text("<tool_call|>")
    out.rule("start", f"({' '.join(['wrapped', *rest])} call {end})* TEXT")


def _arguments(out: writing.Writing, function: writing.Function, index: int) -> str:
    if function.schema is not None:
        return _members(out, f"value_{index}", function, function.schema, 0)
    return _pairs(out)


def _members(
    out: writing.Writing, name: str, function: writing.Function, root: dict[str, Any], depth: int
) -> str:
    items = []
    for number, (key, schema, required) in enumerate(writing.parameters(function)):
        if not _KEY.fullmatch(key):
            raise ValueError(f"{function.name}: {key!r} is no name of a parameter in this format")
        where = f"{function.name}.{key}"
        value = _value(out, f"{name}_{number}", schema, root, where, depth)
        items.append((f"{writing.quoted(key + ':')} {value}", required))
    return writing.in_order(out, f"{name}_members", items, '","')


def _value(
    out: writing.Writing, name: str, schema: Any, root: dict[str, Any], where: str, depth: int
) -> str:
    if depth > 8:
        raise ValueError(f"{where} is nested too deep, or within itself")
    ways = [
        _way(out, f"{name}_{number}", each, root, where, depth)
        for number, each in enumerate(alternatives(schema, root))
    ]
    return out.rule(name, *ways)


def _way(
    out: writing.Writing, name: str, schema: Any, root: dict[str, Any], where: str, depth: int
) -> str:
    """Write a value that follows one of a union's schemas."""
    if (values := writing.literals(schema)) is not None:
        texts = [value for value in values if isinstance(value, str)]
        rest = [value for value in values if not isinstance(value, str)]
        if any(isinstance(value, list | dict) for value in rest) or _QUOTE in "".join(texts):
            raise ValueError(f"{where} has values that arguments in this format are not held to")
        ways = [out.text(f"{_QUOTE}{value}{_QUOTE}") for value in texts]
        ways += [out.json(name, {"enum": rest})] if rest else []
        return f"({' | '.join(ways)})"
    if not isinstance(schema, dict) or not schema.keys() - writing.NOTES:
        return _any(out)
    kind = schema.get("type")
    if kind in _SCALARS:
        return out.json(name, writing.with_definitions(schema, root))
    if kind == "string":
        text = out.rule(f"{name.upper()}_TEXT", f"RAW & {writing.text_of(schema, where)}")
        return f"{out.text(_QUOTE)} {out.ended(name.upper(), text, _QUOTE)}"
    if kind == "array" and not schema.keys() - _OF_LISTS - writing.NOTES:
        item = _value(out, f"{name}_item", schema.get("items", True), root, where, depth + 1)
        return _list(item, schema.get("minItems", 0), schema.get("maxItems"), where)
    if kind == "object":
        if "properties" not in schema and not schema.get("required"):
            return f'"{{" {_pairs(out)} "}}"'
        within = writing.Function(where, schema)
        return f'"{{" {_members(out, name, within, root, depth + 1)} "}}"'
    raise ValueError(f"{where} has a schema that arguments in this format are not held to")


def _list(item: str, least: Any, most: Any, where: str) -> str:
    if not isinstance(least, int) or not isinstance(most, int | None):
        raise ValueError(f"{where}: minItems or maxItems is no whole number")
    return array(item, least, most)


def _pairs(out: writing.Writing) -> str:
    """Write an object with any properties."""
    _any(out)
    return "pairs"


def _any(out: writing.Writing) -> str:
    if not any(line.startswith("any: ") for line in out.lines):
        scalar = out.json("any_scalar", {"type": ["number", "boolean", "null"]})
        out.rule("KEY", "/[A-Za-z_][A-Za-z0-9_]{0,63}:/")
        out.rule("pairs", '(KEY any ("," KEY any)*)?')
        text = f"{out.text(_QUOTE)} {out.ended('ANY_TEXT', 'RAW', _QUOTE)}"
        out.rule("any", text, scalar, '"[" (any ("," any)*)? "]"', '"{" pairs "}"')
    return "any"
