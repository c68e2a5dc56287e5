"""Fuzzed schemas, expressions and grammars: `python -m tests.fuzz.grammars`.

Each is refused with its reason, or served; then an output is drawn under it token by token. Every
token that a mask allows can be followed, a matcher that begins anew makes the same masks, and what
has ended under a schema is JSON that another validator finds valid.
"""

from __future__ import annotations

import json
import sys
from random import Random
from typing import Any

from jsonschema import Draft7Validator

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import ReasoningMarks, StructuredOutputsParams
from quire.text.grammar import new_matcher
from tests.fuzz.mutate import mutate_bytes, mutate_json, value
from tests.matching import BYTES, allowed

EOS = 256
LONGEST = 60
"""Tokens of an output."""
USUAL = frozenset(b'abx01 ,:"[]{}</f=>think')
MARKS = ReasoningMarks(("<think>",), ("</think>",))
TYPES = ["object", "array", "string", "integer", "number", "boolean", "null"]
KEYWORDS = [
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf",
    "allOf", "oneOf", "$ref", "$defs", "minLength", "maxLength", "pattern", "minimum", "maximum",
    "exclusiveMinimum", "multipleOf", "minItems", "maxItems", "prefixItems", "format", "not", "if",
    "patternProperties", "minProperties", "x-guidance", "uniqueItems", "contentEncoding", "$id",
]  # fmt: skip
REGEX = r"a b z \d \w \s . ( ) [ ] [^ ] | * + ? {2} {1,3} {9999} \ ^ $ é \p{L} (?i) (?: / - &"
LARK = """start : | "a" "b" /x+/ /[a-z]{2,900}/ ( ) [ ] * + ? ~3..5 {1,3} rule TERM lazy %json
 {"type":"string"} {} %ignore %llguidance {"no_forcing":false} & ~ <tok> <[3]> @g .. "
 \\ suffix="x" [capture] [lazy] [max_tokens=3]"""
GBNF = """root ::= "a" "b" [a-z] [^"] ( ) | * + ? {2} {1,3} rule item # \\n "\\"" . ->"""


def schema(random: Random, depth: int = 0) -> Any:
    """One that is in order, for the most part of small parts."""
    kind = random.choice(TYPES if depth < 3 else TYPES[2:])
    made: dict[str, Any] = {"type": kind}
    if kind == "object":
        names = random.sample(["a", "b", "é", 'q"', "long name"], random.randint(0, 3))
        made["properties"] = {name: schema(random, depth + 1) for name in names}
        made["required"] = random.sample(names, random.randint(0, len(names)))
        made["additionalProperties"] = random.choice([False, False, True, {"type": "null"}])
    elif kind == "array":
        made["items"] = schema(random, depth + 1)
        made["minItems"] = random.randint(0, 2)
        made["maxItems"] = made["minItems"] + random.randint(0, 2)
    elif kind == "string":
        made |= random.choice([{"maxLength": 5}, {"minLength": 2, "maxLength": 3}])
        if random.random() < 0.3:
            made = {"type": "string", "pattern": random.choice(["^[a-c]{2}$", "x", "^a|b$"])}
    elif kind in ("integer", "number"):
        made |= {"minimum": random.randint(-5, 5), "maximum": random.randint(5, 99)}
    if random.random() < 0.15:
        return {"anyOf": [made, schema(random, depth + 1)]}
    if random.random() < 0.1:
        return {"enum": [1, "a", None, {"a": [1]}][: random.randint(1, 4)]}
    return made


def wanted(random: Random) -> StructuredOutputsParams:
    """What a request might ask for."""
    fields: dict[str, Any]
    match random.randrange(7):
        case 0 | 1:
            fields = {"json": schema(random)}
        case 2:
            fields = {"json": mutate_json(random, schema(random), KEYWORDS)}
        case 3:
            fields = {"regex": "".join(random.choices(REGEX.split(), k=random.randint(1, 10)))}
        case 4:
            text = random.choice(["start: ", ""]) + " ".join(
                random.choices(LARK.split(), k=random.randint(1, 14))
            )
            fields = {"grammar": mutate_bytes(random, text.encode()).decode(errors="replace")}
        case 5:
            text = "root ::= " + " ".join(random.choices(GBNF.split(), k=random.randint(1, 14)))
            fields = {"grammar": text}
        case _:
            tag = {
                "structures": [
                    {"begin": f"<f={name}>", "schema": schema(random, 2), "end": "</f>"}
                    for name in "ab"
                ],
                "triggers": random.choice([["<f="], ["<f=a", "<f=b"], ["<"], ["x"]]),
            }
            fields = {"structural_tag": tag if random.random() < 0.6 else value(random)}
            if random.random() < 0.5:
                fields = {"structural_tag": function_calls(random)}
    if random.random() < 0.2:
        fields["reasoning"] = random.choice(
            [MARKS, ReasoningMarks(MARKS.begins, MARKS.ends, begun=True)]
        )
    if "json" in fields and random.random() < 0.3:
        fields["whitespace_pattern"] = random.choice([" ", "[ \n]{0,2}", "(", ""])
    return StructuredOutputsParams(**fields)


def function_calls(random: Random) -> dict[str, Any]:
    """Calls of two functions, one of them with a schema that may be damaged."""
    made = {"type": "object", "properties": {name: schema(random, 1) for name in ("a", "b")}}
    if random.random() < 0.3:
        made = mutate_json(random, made, KEYWORDS)
    return {
        "type": "function_calls",
        "format": random.choice(["pythonic", "qwen3_coder", "openai"]),
        "functions": [{"name": "f", "schema": made}, {"name": "g"}],
    }


def case(random: Random) -> str:
    """One grammar, and an output under it."""
    try:
        params = wanted(random)
        matcher = new_matcher(BYTES, params)
    except InvalidRequestError:
        return "refused"
    again = matcher.deep_copy()
    output: list[int] = []
    while len(output) < LONGEST and not matcher.is_stopped():
        tokens = allowed(matcher)
        if matcher.is_error():
            return "given up"
        if not tokens:
            break
        ends = EOS in tokens and (random.random() < 0.5 or len(output) > LONGEST // 2)
        token = EOS if ends else _choose(random, tokens)
        assert matcher.consume_token(token), f"{params} does not follow {output} + {token}"
        output.append(token)
    if len(output) % 8 == 0:  # as after a failed step: all of it once more
        for token in output:
            assert again.consume_token(token)
        if not matcher.is_stopped():
            assert again.compute_bitmask() == matcher.compute_bitmask()
    if not (output and output[-1] == EOS):
        return "unfinished"
    _check(params, bytes(token for token in output if token != EOS))
    return "ended"


def _choose(random: Random, allowed: list[int]) -> int:
    """Mostly a letter or what JSON is made of: all bytes alike would write nothing but noise."""
    usual = [token for token in allowed if token in USUAL]
    return random.choice(usual if usual and random.random() < 0.9 else allowed)


def _check(params: StructuredOutputsParams, output: bytes) -> None:
    """What has ended is in order."""
    text = output.decode()  # a mask allows no half character
    if params.kind != "json" or params.reasoning is not None:
        return
    try:
        Draft7Validator.check_schema(params.json)  # type: ignore[arg-type]
    except Exception:
        return  # the schema itself is none, whatever was made of it
    found = json.loads(text)
    if "pattern" not in json.dumps(params.json):
        Draft7Validator(params.json).validate(found)  # type: ignore[arg-type]


if __name__ == "__main__":
    from tests.fuzz.replay import main

    sys.exit(main("tests.fuzz.grammars", case, 50_000))
