"""Fuzzed JSON schemas of what is rewritten: `python -m tests.fuzz.schemas`.

Schemas are small and of few names and values, so that their parts overlap. Whatever the grammar
accepts, be it an instance of these values or a text drawn token by token, is valid under the
schema's own draft.
"""

from __future__ import annotations

import json
import sys
from random import Random
from typing import Any

from jsonschema import SchemaError
from jsonschema.validators import validator_for

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.text.grammar import new_matcher
from tests.matching import BYTES, allowed, takes

EOS = 256
LONGEST = 150
"""Tokens of an output."""
INSTANCES = 24
NAMES = ["a", "b", "c"]
VALUES: list[Any] = [
    None, True, False, 0, 1, 2, 3, 1.5, -1, "", "a", "b", "ab", [], [1], ["a"], [1, 1], {},
    {"a": 1}, {"b": "a"},
]  # fmt: skip
TYPES = ["object", "array", "string", "integer", "number", "boolean", "null"]
DRAFTS = [
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2020-12/schema",
]
WORDS = frozenset(b'ab1,:"[]{}')


def schema(random: Random, depth: int = 0) -> Any:
    """One or two keywords, sometimes with more that go with them."""
    if random.random() < 0.06:
        return random.choice([True, False, {}])
    made: dict[str, Any] = {}
    for _ in range(random.choice([1, 1, 2, 3])):
        made |= (_leaf if depth > 2 or random.random() < 0.4 else _inner)(random, depth + 1)
    return made


def _leaf(random: Random, _: int) -> dict[str, Any]:
    count = random.randint(0, 2)
    names = random.sample(NAMES, random.randint(1, 2))
    return random.choice(
        [
            {"type": random.choice(TYPES)},
            {"type": random.sample(TYPES, 2)},
            {"enum": random.sample(VALUES, random.randint(1, 4))},
            {"minimum": count}, {"maximum": count}, {"required": names},
            {"minLength": count}, {"maxLength": count}, {"pattern": "^(a|b)$"}, {"pattern": "^a"},
            {"minItems": count}, {"maxItems": count}, {"uniqueItems": True},
            {"minProperties": count}, {"maxProperties": count}, {"$ref": "#/definitions/a"},
            {"properties": {names[0]: {"enum": ["a"]}}, "required": names[:1]},
            {"dependencies": {names[0]: names[1:]}}, {"multipleOf": 2},
        ]
    )  # fmt: skip


def _inner(random: Random, depth: int) -> dict[str, Any]:
    def one() -> Any:
        return schema(random, depth)

    def some() -> list[Any]:
        return [one() for _ in range(random.randint(1, 3))]

    names = random.sample(NAMES, random.randint(1, 3))
    match random.randrange(13):
        case 0 | 1:
            return {"not": one()}
        case 2 | 3:
            return {"oneOf": some()}
        case 4:
            return {"anyOf": some()}
        case 5:
            return {"allOf": some()}
        case 6:
            return {"if": one(), "then": one(), "else": one()}
        case 7:
            return {"dependencies": {name: one() for name in names[:2]}}
        case 8:
            return {"contains": one()}
        case 9:
            return {"propertyNames": random.choice([{"pattern": "a"}, {"enum": names}, one()])}
        case 10:
            return {"items": random.choice([one(), one()])}
        case 11:
            return {"type": "object", "properties": {name: one() for name in names},
                    "additionalProperties": random.choice([False, True, one()])}  # fmt: skip
        case _:
            return {"patternProperties": {"^a": one()}}


def instance(random: Random, depth: int = 0) -> Any:
    """A value that such schemas are about."""
    if depth > 1 or random.random() < 0.5:
        return random.choice(VALUES)
    if random.random() < 0.4:
        return [instance(random, depth + 1) for _ in range(random.randint(0, 3))]
    names = [name for name in NAMES if random.random() < 0.5]
    return {name: instance(random, depth + 1) for name in names}


def case(random: Random) -> str:
    """One schema: its instances, and a text drawn under it."""
    made = schema(random)
    if not isinstance(made, dict):
        made = {"not": made}
    named = schema(random, 2)
    while "$ref" in json.dumps(named):  # validators follow a reference to itself for ever
        named = schema(random, 2)
    made = {"$schema": random.choice(DRAFTS), **made, "definitions": {"a": named}}
    validator = validator_for(made)(made)
    try:
        validator.check_schema(made)
    except SchemaError:
        return "none of its draft"
    params = StructuredOutputsParams(json=made, disable_additional_properties=random.random() < 0.5)
    try:
        matcher = new_matcher(BYTES, params)
    except InvalidRequestError:
        return "refused"
    narrow = False
    for _ in range(INSTANCES):
        value = instance(random)
        matcher.reset()
        if takes(matcher, list(json.dumps(value).encode())):
            assert validator.is_valid(value), f"{json.dumps(made)} accepts {json.dumps(value)}"
        elif validator.is_valid(value):
            narrow = True
        if matcher.is_error():
            matcher = new_matcher(BYTES, params)
    matcher.reset()
    text = drawn(random, matcher)
    if text is not None and (value := _distinct(text)) is not None:
        assert validator.is_valid(*value), f"{json.dumps(made)} draws {text}"
    return "narrow" if narrow else "exact"


def _distinct(text: str) -> tuple[Any] | None:
    """The value of a text; None if an object has a name twice, which no grammar can see."""
    doubled = False

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal doubled
        doubled = doubled or len(dict(pairs)) < len(pairs)
        return dict(pairs)

    value = json.loads(text, object_pairs_hook=made)
    return None if doubled else (value,)


def drawn(random: Random, matcher: Any) -> str | None:
    """A text that ended under the grammar."""
    output: list[int] = []
    while len(output) < LONGEST:
        tokens = allowed(matcher)
        if matcher.is_error() or not tokens:
            break
        ends = EOS in tokens and random.random() < 0.5
        usual = [token for token in tokens if token in WORDS] or tokens
        token = EOS if ends else random.choice(usual if random.random() < 0.95 else tokens)
        assert matcher.consume_token(token)
        if token == EOS:
            return bytes(output).decode()
        output.append(token)
    return None


if __name__ == "__main__":
    from tests.fuzz.replay import main

    sys.exit(main("tests.fuzz.schemas", case, 50_000))
