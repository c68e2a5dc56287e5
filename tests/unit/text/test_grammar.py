"""Structured output as grammars: what matches, and what is refused with its reason."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.text.grammar import new_matcher
from quire.text.grammar_writer import MAX_DEPTH, MAX_GRAMMAR_BYTES
from quire.text.structures import refused
from tests.examples import examples
from tests.matching import BYTES, accepts, allowed

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"enum": ["a", None]}},
    "required": ["x", "y"],
    "additionalProperties": False,
}


XML_CALL = {
    "type": "function_calls",
    "format": "qwen3_coder",
    "functions": [{"name": "f", "schema": {"type": "object", "properties": {"a": True}}}],
}
BEGIN = "<tool_call>\n<function=f>\n<parameter=a>\n"
END = "\n</parameter>\n</function>\n</tool_call>"


def multiples_of(*numbers: float) -> dict[str, Any]:
    return {"type": "number", "allOf": [{"multipleOf": number} for number in numbers]}


@pytest.mark.parametrize("choices", [["ab"] * 8000, [f"ab{i}" for i in range(8000)]])
def test_thousands_of_choices_can_be_followed(choices: list[str]) -> None:
    assert accepts(StructuredOutputsParams(choice=choices), choices[-1])


def test_formats_of_others_are_remarks() -> None:
    properties = {
        "format": {"type": "string", "format": "password"},
        "paths": {"type": "array", "items": {"anyOf": [{"type": "string", "format": "path"}]}},
        "day": {"type": "string", "format": "date"},
    }
    schema = {"type": "object", "properties": properties, "required": ["format"]}
    params = StructuredOutputsParams(json=schema)
    assert accepts(params, '{"format": "x", "paths": ["y"], "day": "2024-01-31"}')
    assert not accepts(params, '{"format": "x", "day": "soon"}')
    assert properties["format"]["format"] == "password"


@pytest.mark.parametrize(
    ("fields", "good", "bad"),
    [
        ({"json": POINT}, ['{"x": 1, "y": "a"}', '{"x":-2,"y":null}'], ['{"x": 1}', '{"x": 1.5']),
        ({"json": json.dumps(POINT)}, ['{"x":1,"y":"a"}'], ["{}"]),
        ({"json": True}, ["1", "[]", '"a"'], ["a", ""]),
        ({"json_object": True}, ["{}", '{"a": [1]}'], ["[]", "1"]),
        (
            {"json": POINT, "disable_any_whitespace": True},
            ['{"x":1,"y":"a"}'],
            ['{"x": 1,"y":"a"}'],
        ),
        (
            {"json": POINT, "whitespace_pattern": " "},
            ['{"x": 1, "y": "a"}'],
            ['{"x":\n1, "y": "a"}'],
        ),
        ({"regex": r"\d{3}-[a-c]+"}, ["123-abc"], ["123-", "123-abcd", "x123-a"]),
        ({"choice": ["yes", "no", 'a"b\\']}, ["yes", "no", 'a"b\\'], ["ye", "yesno", ""]),
        ({"grammar": 'start: "a" b*\nb: "b" | "c"'}, ["a", "abcb"], ["", "b"]),
        (
            {"structural_tag": XML_CALL},
            [f"{BEGIN}x y{END}", f"{BEGIN}3{END}"],
            [f"{BEGIN}3", "<function=f>"],
        ),
        ({"json": {"type": "number", "multipleOf": 0.05}}, ["0.15", "2", "-1.05"], ["0.12"]),
        ({"json": multiples_of(181, 0.5)}, ["181", "-362", "0"], ["90.5", "0.5", "1"]),
        ({"grammar": 'start: "a" %json {"multipleOf": 7}'}, ["a14"], ["a15", "14"]),
        ({"json": POINT}, ['{\n    "x": 1,\n    "y": "a"\n}'], ['{"x":  1', '{   "x": 1']),
        ({"grammar": 'root ::= "a" item*\nitem ::= [bc]'}, ["a", "abcb"], ["", "b"]),
    ],
)
def test_a_text_matches_or_not(fields: dict[str, Any], good: list[str], bad: list[str]) -> None:
    params = StructuredOutputsParams(**fields)
    assert [accepts(params, text) for text in good] == [True] * len(good)
    assert [accepts(params, text) for text in bad] == [False] * len(bad)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": {"$ref": "#/definitions/none"}}, "none"),
        ({"json": "{"}, "not valid JSON"),
        ({"json": "[1]"}, "an object or a boolean"),
        ({"json": nested(MAX_DEPTH)}, "nested deeper"),
        ({"json": '{"a":' * 100_000}, "larger|more than|nested|not valid"),
        ({"json": {"type": "object", "x-guidance": {"lenient": True}, "not": {}}}, "not"),
        ({"json": {"const": {"a": [-(2**63)]}}}, "too small"),
        ({"json": {"type": "integer", "minimum": 1 - 2**63, "maximum": 600 - 2**63}}, "too small"),
        ({"json": {"type": "integer", "minimum": -1e19, "maximum": -9.5e18}}, "too small"),
        ({"grammar": 'start: %json {"const": -9223372036854775808}'}, "too small"),
        ({"json": {"type": "number", "multipleOf": 2**31 - 1, "maximum": 31}}, "multipleOf may"),
        ({"json": {"items": {"type": "number", "multipleOf": 0.32769}}}, "multipleOf may"),
        ({"json": multiples_of(9973, 9967)}, "least common multiple"),
        ({"json": multiples_of(1e-9, 7)}, "least common multiple"),
        ({"json": multiples_of(1e308, 1e-308)}, "least common multiple"),
        ({"grammar": 'start: %json {"type": "number", "multipleOf": 65537}'}, "multipleOf may"),
        ({"grammar": 'start: %json {"contentEncoding": "base64"}'}, "contentEncoding"),
        ({"grammar": "start: %json nothing"}, "no JSON"),
        ({"regex": "a(b"}, "regex"),
        ({"regex": "(?=a)b"}, "look-around|regex"),
        ({"regex": "a" * (MAX_GRAMMAR_BYTES + 1)}, "more than"),
        ({"grammar": "start: nope"}, "nope"),
        ({"grammar": "root ::= ("}, "line 1"),
        ({"grammar": "root ::= nope"}, "nope"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        new_matcher(BYTES, StructuredOutputsParams(**fields))
    assert caught.value.param == "structured_outputs"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"json": {}, "regex": "a"},
        {"choice": []},
        {"json_object": False},
        {"regex": "a", "whitespace_pattern": " "},
        {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True},
    ],
)
def test_fields_that_contradict_each_other(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        StructuredOutputsParams(**fields)
    assert caught.value.param == "structured_outputs"


BOMBS = [
    {"regex": "(a{1,1000}){1,1000}"},
    {"regex": "(.*a){30}"},
    {"regex": "(a|b)*a(a|b){24}"},
    {"json": {"type": "string", "minLength": 100_000, "maxLength": 1_000_000}},
    {"json": {"type": "array", "items": {}, "minItems": 1_000_000}},
    {"json": {"allOf": [{"anyOf": [{"minimum": i}, {"maximum": -i}]} for i in range(12)]}},
    {"grammar": "start: " + "(" * 2000 + '"a"' + ")" * 2000},
    {"grammar": 'start: "a"{1,100000000}'},
]


@pytest.mark.parametrize("fields", BOMBS)
def test_bombs_are_compiled_or_refused(fields: dict[str, Any]) -> None:
    """Soon, either way: fuel bounds the work. The first mask counts."""
    params = StructuredOutputsParams(**fields)
    try:
        matcher = new_matcher(BYTES, params)
    except InvalidRequestError:
        return
    matcher.compute_bitmask()


REGEX = r"a b \d \w \s . ( ) [ ] [^ ] | * + ? {2} {1,3} {99,999} \ ^ $ é \p{L} (?i) /"
GRAMMAR = """start : | start: "a" "b" /x+/ ( ) [ ] * + ? ~3..5 {1,3} rule TERM %json {"type":
 "string"} %ignore ::= root %llguidance {} & ~ <tok> @g [lazy] .. \" """
SCHEMA = """{ } [ ] : , "type" "string" "object" "array" "properties" "a" "$ref" "#" "#/a" "items" 1
 -1 1e999 "enum" "const" "anyOf" "allOf" "pattern" "(" "minLength" "maxItems" true null"""
WORDS = {
    "regex": [*REGEX.split(), "\n"],
    "grammar": [*GRAMMAR.split(), "\n"],
    "json": SCHEMA.split(),
}


@pytest.mark.parametrize("kind", [*WORDS])
@settings(max_examples=examples(80), deadline=None)
@given(data=st.data())
def test_any_grammar_is_served_or_refused(kind: str, data: st.DataObject) -> None:
    words = data.draw(st.lists(st.sampled_from(WORDS[kind]), min_size=1, max_size=14))
    text = data.draw(st.sampled_from([" ", ""])).join(words)
    try:
        params = StructuredOutputsParams(**{kind: text})
        matcher = new_matcher(BYTES, params)
    except InvalidRequestError:
        return
    rng = Random(0)
    for _ in range(8):
        if matcher.is_stopped():
            break
        if not (tokens := allowed(matcher)):
            break
        matcher.consume_token(rng.choice(tokens))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"properties": {"a": {}}, "unevaluatedProperties": False},
            ['{"a":1}'],
            ['{"b":1}', '{"a":1,"b":1}'],
        ),
        ({"unevaluatedProperties": {"type": "null"}}, ['{"b":null}'], ['{"b":1}']),
        ({"type": "array", "prefixItems": [{}], "unevaluatedItems": False}, ["[1]"], ["[1,2]"]),
        ({"type": "array", "items": [{}], "unevaluatedItems": False}, ["[1]"], ["[1,2]"]),
        ({"type": "array", "items": {"type": "null"}, "unevaluatedItems": False}, ["[null]"], []),
        ({"type": "array", "maxItems": 1.0}, ["[1]"], ["[1,2]"]),
    ],
)
def test_keywords_that_have_an_older_name(schema: Any, good: list[str], bad: list[str]) -> None:
    for open_objects in (True, False):
        params = StructuredOutputsParams(
            json={"type": "object", **schema}, disable_additional_properties=not open_objects
        )
        assert [text for text in good if not accepts(params, text)] == []
        assert [text for text in bad if accepts(params, text)] == []


def test_unevaluated_properties_of_several_schemas_are_refused() -> None:
    schema = {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}
    with pytest.raises(InvalidRequestError, match="unevaluatedProperties"):
        new_matcher(BYTES, StructuredOutputsParams(json=schema))


def test_a_text_that_the_vocabulary_cannot_spell() -> None:
    params = StructuredOutputsParams(choice=["yes"])
    error = refused("NoExtensionBias", params)  # llguidance's word, at the first mask
    assert "no token of the model's vocabulary" in str(error)
