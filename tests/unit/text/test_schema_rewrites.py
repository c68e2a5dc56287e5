"""JSON schemas that are rewritten for llguidance: what they accept, and why some are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema.validators import validator_for

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.text.grammar import new_matcher
from quire.text.tokenizers.vocabulary import byte_tokenizer

TOKENIZER = byte_tokenizer()
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
OBJECT = {"type": "object", "additionalProperties": False}
A_OR_B = {**OBJECT, "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


def accepts(schema: dict[str, Any], text: str, *, close: bool = False) -> bool:
    """Whether the text may be generated and may end.

    Args:
        close: objects that name their properties have no others.
    """
    params = StructuredOutputsParams(json=schema, disable_additional_properties=close)
    matcher = new_matcher(TOKENIZER, params)
    tokens = list(text.encode())
    fits = matcher.validate_tokens(tokens) == len(tokens)
    return fits and matcher.consume_tokens(tokens) and matcher.is_accepting()


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/definitions/{name}"}


COLORS = {"enum": ["red", "blue"], "title": "Color"}
CASES: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"oneOf": [ref("n"), ref("s")],
      "definitions": {"n": {"type": "null"}, "s": {"type": "string", "format": "password"}}},
     [None, "x"], [1]),
    ({"oneOf": [{**OBJECT, "properties": {"k": {"const": k}}, "required": ["k"]} for k in "xy"]},
     [{"k": "x"}, {"k": "y"}], [{"k": "z"}, {}]),
    ({"$schema": DRAFT_7, **A_OR_B, "dependencies": {"a": ["b"]}},
     [{}, {"b": 1}, {"a": 1, "b": 1}], [{"a": 1}]),
    ({"$schema": DRAFT_7, "type": ["array", "object"], "dependencies": {"a": False}},
     [[1], {}, {"b": 1}], [{"a": 1}]),
    ({**A_OR_B, "dependentRequired": {"a": ["b"]}}, [{}, {"a": 1, "b": 1}], [{"a": 1}]),
    ({**A_OR_B, "dependentSchemas": {"a": {"properties": {"b": {"minimum": 5}}}}},
     [{"b": 1}, {"a": 1, "b": 6}], [{"a": 1, "b": 1}]),
    ({**A_OR_B, "not": {"required": ["a"]}}, [{}, {"b": 1}], [{"a": 1}, {"a": 1, "b": 1}]),
    ({**A_OR_B, "not": {"required": ["a", "b"]}}, [{}, {"a": 1}, {"b": 1}], [{"a": 1, "b": 2}]),
    ({"type": "object", "minProperties": 2}, [{"a": 1, "b": 1}], [{}, {"a": 1}]),
    ({"type": "object", "propertyNames": {"type": "string"}}, [{"a": 1}], [1]),
    ({"type": "object", "propertyNames": {"pattern": "^a"}}, [{}, {"ab": 1}], [{"b": 1}]),
    ({"type": "object", "propertyNames": {"minLength": 2}}, [{}, {"ab": 1}], [{"b": 1}]),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, [{"b": 1}], [{"c": 1}]),
    ({"type": "object", "propertyNames": ref("c"), "additionalProperties": {"type": "integer"},
      "definitions": {"c": COLORS}}, [{}, {"blue": 1}], [{"green": 1}, {"red": "x"}]),
    ({"type": "array", "uniqueItems": False}, [["x", "x"]], []),
    ({"type": "string", "format": "uri-reference"}, ["a/b?c#d", "#", "http://x/y"], ["\\", "a b"]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, [0.5, 0.1], [0, 0.0, 0.6]),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "number",
      "minimum": 1, "exclusiveMinimum": True}, [1.5, 2], [1, 0.5]),
    ({"$id": "http://x/y", "$ref": "#/definitions/n", "definitions": {"n": {"type": "null"}}},
     [None], [1]),
    ({"properties": {"a": {"oneOf": [{"type": "null"}, {"type": "string"}]},
                     "b": {"$ref": "#/properties/a/oneOf/1"}}, "type": "object"},
     [{"a": None, "b": "x"}], [{"b": None}]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), CASES, ids=lambda case: json.dumps(case)[:60])
def test_a_rewritten_schema_means_the_same(
    schema: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    before = json.dumps(schema)
    validator = validator_for(schema)(schema)
    assert [validator.is_valid(each) for each in good + bad] == [True] * len(good) + [False] * len(
        bad
    ) or "format" in schema
    assert [each for each in good if not accepts(schema, json.dumps(each))] == []
    assert [each for each in bad if accepts(schema, json.dumps(each))] == []
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems"),
        ({"not": {"multipleOf": 3}}, "not"),
        ({"if": {"type": "null"}, "then": {"const": None}}, "if"),
        ({"contains": {"const": 1}}, "contains"),
        ({"type": "object", "propertyNames": {"format": "date"}}, "propertyNames"),
        ({"oneOf": [{"required": "a"}]}, "required"),
        ({"dependencies": {"a": 3}}, "object or boolean"),
        ({"dependencies": 3}, "dependencies"),
        ({"$ref": "#/nowhere/at/all"}, "nowhere"),
        ({**OBJECT, "properties": {f"p{i}": {} for i in range(30)}, "minProperties": 9}, "maxProp"),
        (
            {"type": "string", "pattern": r"^$|(^(?:\S+\s+){0,99}\S+$)", "minLength": 1,
             "maxLength": 5000},
            "too much to follow",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_by_its_keyword(
    schema: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        new_matcher(TOKENIZER, StructuredOutputsParams(json=schema))


def test_branches_of_one_of_that_overlap_are_any_of() -> None:
    schema = {"oneOf": [{"type": "integer", "minimum": 2}, {"type": "integer", "maximum": 4}]}
    assert all(accepts(schema, text) for text in ("1", "3", "5"))
    schema = {**A_OR_B, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert accepts(schema, '{"a": 1, "b": 2}')
    assert not accepts(schema, "{}")


@pytest.mark.parametrize("place", ["plain", "$ref", "allOf", "sibling"])
def test_properties_come_in_the_order_of_their_definition(place: str) -> None:
    inner: dict[str, Any] = {
        **OBJECT,
        "properties": {"z": {"type": "integer"}, "a": {"type": "integer"}, "m": {}},
        "required": ["m", "a"],
        "propertyNames": {"enum": ["a", "m", "z"]},
    }
    schema = {
        "plain": inner,
        "$ref": {**ref("o"), "definitions": {"o": inner}},
        "allOf": {"allOf": [ref("o")], "definitions": {"o": inner}},
        "sibling": {"type": "object", **ref("o"), "definitions": {"o": inner}},
    }[place]
    assert accepts(schema, '{"z": 1, "a": 2, "m": 3}')
    assert accepts(schema, '{"a": 2, "m": 3}')
    assert not accepts(schema, '{"m": 3, "a": 2}')


@pytest.mark.parametrize("low", [-1.5, -1, 0, 0.5, 1, 10])
@pytest.mark.parametrize("width", [0.05, 0.5, 1, 9.5])
def test_exclusive_bounds_exclude_themselves(low: float, width: float) -> None:
    schema = {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": low + width}
    for bound in (low, low + width):
        for text in (f"{bound:g}", f"{bound:.3f}", f"{bound:.3e}", "-0" if bound == 0 else "x"):
            assert not accepts(schema, text), text
    assert accepts(schema, f"{low + width / 2:.4f}")
