"""Objects whose schema names properties have no others, unless the schema opens them."""

from __future__ import annotations

import contextlib
import json
from random import Random
from typing import Any

import pytest
from jsonschema.validators import validator_for

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.text.grammar import new_matcher
from tests.fuzz.schemas import drawn
from tests.matching import BYTES
from tests.unit.text.test_schema_rewrites import accepts

OBJECT = {"type": "object"}
NUMBER = {"type": "integer"}
BASE = {**OBJECT, "properties": {"a": NUMBER, "in": {**OBJECT, "properties": {"z": NUMBER}}}}
LEAF = {**OBJECT, "properties": {"b": NUMBER}, "required": ["b"]}
DEFS = {"Base": BASE, "Leaf": LEAF, "Nested": {"$ref": "#/$defs/Leaf"}}


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def branch(kind: str, **properties: Any) -> dict[str, Any]:
    return {**OBJECT, "properties": {"kind": {"const": kind}, **properties}, "required": ["kind"]}


CASES: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "plain": (BASE, [{}, {"a": 1}, {"in": {"z": 1}}], [{"q": 1}, {"a": 1, "q": 1}]),
    "within": (BASE, [{"in": {}}], [{"in": {"q": 1}}, {"in": {"a": 1}}]),
    "items": ({"type": "array", "items": LEAF}, [[{"b": 1}]], [[{"b": 1, "q": 1}]]),
    "any type": ({"properties": {"a": NUMBER}}, [None, {"a": 1}], [{"q": 1}]),
    "or null": ({**BASE, "type": ["object", "null"]}, [None, {"a": 1}], [{"q": 1}]),
    "no properties named": ({**OBJECT, "properties": {}}, [{}], [{"q": 1}]),
    "a name without a schema": ({**BASE, "required": ["r"]}, [{"r": 1}], [{"r": 1, "q": 1}]),
    "names by pattern": ({**OBJECT, "patternProperties": {"^x": NUMBER}}, [{"x1": 1}], [{"q": 1}]),
    "at least one": (
        {**OBJECT, "properties": {"a": NUMBER, "b": NUMBER}, "minProperties": 1},
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 2}],
        [{"q": 1}],
    ),
    "$ref": ({**ref("Base"), "$defs": DEFS}, [{"a": 1}], [{"q": 1}, {"in": {"q": 1}}]),
    "$ref to $ref": ({**ref("Nested"), "$defs": DEFS}, [{"b": 1}], [{"b": 1, "q": 1}]),
    "$ref to the whole": (
        {**OBJECT, "properties": {"next": {"$ref": "#"}}},
        [{"next": {"next": {}}}],
        [{"next": {"q": 1}}],
    ),
    "$ref elsewhere": (
        {**OBJECT, "properties": {"x": {"$ref": "#/parts/Leaf"}}, "parts": {"Leaf": LEAF}},
        [{"x": {"b": 1}}],
        [{"x": {"b": 1, "q": 1}}],
    ),
    "$ref with more": (
        {**ref("Base"), "properties": {"c": NUMBER}, "$defs": DEFS},
        [{"a": 1, "c": 2}],
        [{"q": 1}, {"in": {"q": 1}}],
    ),
    "allOf": (
        {"allOf": [ref("Base"), ref("Leaf"), {"properties": {"c": NUMBER}}], "$defs": DEFS},
        [{"a": 1, "b": 2, "c": 3}, {"in": {"z": 1}, "b": 1}],
        [{"b": 2, "q": 1}, {"in": {"a": 1}, "b": 1}],
    ),
    "allOf of one": ({"allOf": [ref("Leaf")], "$defs": DEFS}, [{"b": 1}], [{"b": 1, "q": 1}]),
    "allOf of one property": (
        {**OBJECT, "allOf": [{"properties": {"x": each}} for each in (BASE, LEAF)]},
        [{"x": {"a": 1, "b": 2}}],
        [{"x": {"b": 1, "q": 1}}],
    ),
    "anyOf": (
        {"anyOf": [ref("Base"), ref("Leaf"), {"type": "null"}], "$defs": DEFS},
        [{"a": 1}, {"b": 1}, None],
        [{"a": 1, "b": 1}, {"q": 1}],
    ),
    "anyOf beside properties": (
        {**BASE, "anyOf": [{"properties": {"b": NUMBER}, "required": ["b"]}, {"required": ["a"]}]},
        [{"a": 1}, {"a": 1, "b": 1}, {"b": 1}],
        [{"a": 1, "q": 1}, {"b": 1, "q": 1}],
    ),
    "anyOf of required": (
        {**BASE, "anyOf": [{"required": ["a"]}, {"required": ["in"]}]},
        [{"a": 1}, {"in": {}}],
        [{"a": 1, "q": 1}, {"in": {"q": 1}}],
    ),
    "two unions": (
        {**OBJECT, "anyOf": [LEAF, BASE], "oneOf": [branch("x", c=NUMBER), branch("y")]},
        [{"b": 1, "kind": "x", "c": 2}, {"b": 1, "kind": "y"}],
        [{"b": 1, "kind": "x", "q": 2}],
    ),
    "oneOf by a constant": (
        {"oneOf": [branch("x", c=NUMBER), branch("y", d=NUMBER)]},
        [{"kind": "x", "c": 1}, {"kind": "y", "d": 1}],
        [{"kind": "x", "d": 1}, {"kind": "y", "q": 1}],
    ),
    "if": (
        {**branch("x"), "properties": {"kind": {"enum": ["x", "y"]}},
         "if": {"properties": {"kind": {"const": "x"}}}, "then": {"properties": {"n": NUMBER}}},
        [{"kind": "x", "n": 1}, {"kind": "y"}],
        [{"kind": "y", "q": 1}, {"kind": "x", "q": 1}],
    ),
    "dependentSchemas": (
        {**BASE, "dependentSchemas": {"a": {"properties": {"c": NUMBER}, "required": ["c"]}}},
        [{}, {"a": 1, "c": 2}],
        [{"q": 1}],
    ),
    "not": ({**BASE, "not": {"required": ["z"]}}, [{"a": 1}], [{"q": 1}]),
    "bounds with exponents": (
        {**OBJECT, "properties": {"x": {"type": "number", "minimum": 0}}},
        [{"x": 0.5}],
        [{"x": 0.5, "q": 1}],
    ),
}  # fmt: skip
OPEN: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "a dictionary": (OBJECT, [{"q": 1}]),
    "a dictionary with a key": ({**OBJECT, "required": ["r"]}, [{"r": 1, "q": 2}]),
    "true": ({**BASE, "additionalProperties": True}, [{"q": 1}]),
    "a schema": ({**BASE, "additionalProperties": {"type": "null"}}, [{"q": None}]),
    "in allOf": (
        {"allOf": [{**BASE, "additionalProperties": True}, ref("Leaf")], "$defs": DEFS},
        [{"b": 1, "q": 1}],
    ),
    "one branch": ({"anyOf": [LEAF, {**BASE, "additionalProperties": True}]}, [{"q": 1}]),
    "a dictionary within": ({**OBJECT, "properties": {"d": OBJECT}}, [{"d": {"q": 1}}]),
    "under not": ({**OBJECT, "not": {**OBJECT, **LEAF}}, [{"q": 1}]),
    "contains": ({"type": "array", "contains": LEAF}, [[{"b": 1, "q": 1}]]),
}


@pytest.mark.parametrize("case", CASES)
def test_objects_have_no_other_properties(case: str) -> None:
    schema, good, bad = CASES[case]
    before = json.dumps(schema)
    validator = validator_for(schema)(schema)
    assert [each for each in good + bad if not validator.is_valid(each)] == []
    assert [each for each in good if not accepts(schema, json.dumps(each), close=True)] == []
    assert [each for each in bad if accepts(schema, json.dumps(each), close=True)] == []
    assert [each for each in bad if not accepts(schema, json.dumps(each))] == []
    assert json.dumps(schema) == before


@pytest.mark.parametrize("case", OPEN)
def test_objects_stay_open(case: str) -> None:
    schema, good = OPEN[case]
    assert [each for each in good if not accepts(schema, json.dumps(each), close=True)] == []


def names(value: Any) -> set[str]:
    """Of all properties."""
    within = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set(value if isinstance(value, dict) else ()).union(*map(names, within))


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_is_valid_and_has_no_unknown_name(case: str) -> None:
    schema, good, _ = CASES[case]
    known = names(good) | {"a", "b", "c", "d", "in", "kind", "n", "z", "next", "x", "r"}
    matcher = new_matcher(BYTES, StructuredOutputsParams(json=schema))
    for seed in range(4):
        text = drawn(Random(seed), matcher)
        matcher.reset()
        if text is not None:
            value = json.loads(text)
            validator_for(schema)(schema).validate(value)
            if isinstance(value, dict):
                value.pop("r", None)  # of any value
            assert {name for name in names(value) if not name.startswith("x")} <= known, text


def test_a_schema_cannot_bring_notes_of_its_own() -> None:
    schema = {**OBJECT, "x-closed": [["a"], []], "not": {"not": {"x-closed": 1}}}
    assert accepts(schema, '{"q": 1}', close=True)


@pytest.mark.parametrize("word", ["allOf", "anyOf", "properties", "patternProperties", "$ref"])
@pytest.mark.parametrize("value", [3, "a", None, True, [1], {"a": 1}])
@pytest.mark.parametrize("beside", [{}, {"anyOf": [{"properties": {"b": True}}]}])
def test_malformed_words_are_refused_or_served(word: str, value: Any, beside: Any) -> None:
    schema = {"type": "object", "properties": {"a": True}, **beside, word: value}
    with contextlib.suppress(InvalidRequestError):
        new_matcher(BYTES, StructuredOutputsParams(json=schema))


def test_hostile_schemas_cost_few_steps() -> None:
    wide = {f"n{i}": True for i in range(3000)}
    schemas: list[dict[str, Any]] = [
        {**OBJECT, "properties": wide, "anyOf": [{"properties": {f"p{i}": {}}} for i in range(99)]},
        {**ref("0"), "$defs": {str(i): {"allOf": [ref(str(i + 1)), LEAF]} for i in range(999)}},
    ]
    for schema, why in zip(schemas, ("too many schemas", "lead in circles"), strict=True):
        with pytest.raises(InvalidRequestError, match=why):
            new_matcher(BYTES, StructuredOutputsParams(json=schema))
