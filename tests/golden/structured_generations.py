"""Generations under schemas, checked by another validator.

python -m tests.golden.structured_generations 500
"""

from __future__ import annotations

import json
import sys
from typing import Any

from jsonschema import Draft7Validator

from quire import LLM, SamplingParams, StructuredOutputsParams

WORD = {"type": "string", "maxLength": 12}
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {"name": WORD, "age": {"type": "integer", "minimum": 0, "maximum": 130}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": ["red", "green", 3, None]}, "minItems": 2, "maxItems": 5},
    {
        "type": "object",
        "properties": {
            "animal": {"enum": ["cat", "dog"]},
            "friends": {"type": "array", "items": {"$ref": "#/definitions/friend"}, "maxItems": 2},
        },
        "required": ["animal", "friends"],
        "additionalProperties": False,
        "definitions": {
            "friend": {
                "type": "object",
                "properties": {"name": WORD, "old": {"type": "boolean"}},
                "required": ["name"],
                "additionalProperties": False,
            }
        },
    },
    {"anyOf": [{"type": "string", "pattern": "^[A-Z][a-z]{2,6}$"}, {"type": "null"}]},
    {"type": "number", "minimum": -1, "maximum": 1, "multipleOf": 0.25},
    {
        "type": "object",
        "properties": {"when": {"type": "string", "format": "uuid"}, "id": {"const": 7}},
        "required": ["when", "id"],
        "additionalProperties": False,
    },
    {
        "type": "array",
        "items": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 3},
        "minItems": 1,
        "maxItems": 3,
    },
    {
        "type": "object",
        "patternProperties": {"^[a-c]$": {"type": "boolean"}},
        "additionalProperties": False,
        "maxProperties": 3,
    },
]


def generate(llm: LLM, count: int) -> list[tuple[dict[str, Any], str, str | None]]:
    """Schema, text and finish reason of `count` generations, greedy and sampled."""
    params = [
        SamplingParams(
            max_tokens=400,
            temperature=(0.0, 0.8, 1.5)[i % 3],
            seed=i,
            structured_outputs=StructuredOutputsParams(
                json=SCHEMAS[i % len(SCHEMAS)], whitespace_pattern=" "
            ),
        )
        for i in range(count)
    ]
    prompts = [f"Once upon a time there were {i} friends." for i in range(count)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [
        (SCHEMAS[i % len(SCHEMAS)], output.outputs[0].text, output.outputs[0].finish_reason)
        for i, output in enumerate(outputs)
    ]


def is_valid(schema: dict[str, Any], text: str) -> bool:
    return Draft7Validator(schema).is_valid(json.loads(text))


def main(count: int) -> None:
    with LLM("embedded", enable_prefix_caching=False) as llm:
        done = generate(llm, count)
    ended = [(schema, text) for schema, text, reason in done if reason == "stop"]
    valid = sum(is_valid(schema, text) for schema, text in ended)
    print(f"{count} generations: {len(ended)} ended, {valid} of them valid")


if __name__ == "__main__":
    main(int(sys.argv[1]))
