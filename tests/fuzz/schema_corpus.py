"""A folder of JSON schemas with instances against the grammars.

    python -m tests.fuzz.schema_corpus FOLDER [EVERY]

Each file has a "schema" and "tests" of "data" and "valid", as MaskBench's have. The report counts
refusals by reason, instances that are accepted and invalid (there must be none), and valid ones
that are not accepted, even with their properties in the schema's order.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.text.grammar import new_matcher
from quire.text.json_schema.scope import at_pointer
from quire.text.tokenizers.vocabulary import byte_tokenizer

TOKENIZER = byte_tokenizer()
_OBJECT = ("properties", "patternProperties", "additionalProperties", "required")


def main(folder: Path, every: int) -> int:
    """Check every N-th file; return 1 if an invalid instance was accepted."""
    refused: Counter[str] = Counter()
    unsound: list[str] = []
    narrow: list[str] = []
    slow: list[tuple[float, str]] = []
    files = sorted(folder.glob("*.json"))[::every]
    instances = 0
    for file in files:
        given = json.loads(file.read_text())
        begin = time.process_time()
        params = StructuredOutputsParams(json=given["schema"])
        try:
            new_matcher(TOKENIZER, params)
        except InvalidRequestError as error:
            refused[str(error).split("cannot be served: ")[-1][:90]] += 1
            continue
        finally:
            slow.append((time.process_time() - begin, file.name))
        for number, test in enumerate(given["tests"]):
            instances += 1
            name = f"{file.name} {number}"
            if _accepts(params, test["data"]):
                unsound += [] if test["valid"] else [name]
            elif test["valid"]:
                ordered = _ordered(test["data"], [given["schema"]], given["schema"])
                narrow += [] if _accepts(params, ordered) else [name]
    print(f"{len(files)} schemas, {refused.total()} refused:")
    for reason, count in refused.most_common(30):
        print(f"  {count:5} {reason}")
    print(f"{instances} instances; {len(unsound)} accepted, though invalid:", *unsound, sep="\n  ")
    print(f"{len(narrow)} not accepted, though valid:", *narrow, sep="\n  ")
    print("slowest:", *(f"{took:.2f} s {name}" for took, name in sorted(slow)[-5:]), sep="\n  ")
    return 1 if unsound else 0


def _accepts(params: StructuredOutputsParams, value: Any) -> bool:
    matcher = new_matcher(TOKENIZER, params)
    tokens = json.dumps(value, ensure_ascii=False).encode()
    return all(map(matcher.consume_token, tokens)) and matcher.is_accepting()  # fuel is per token


def _ordered(value: Any, schemas: list[Any], root: Any) -> Any:
    """The value with properties in the order in which the schemas list them."""
    parts = list(_parts(schemas, root, set()))
    if isinstance(value, dict):
        order = [name for part in parts for name in part.get("properties", {})]
        order += [name for part in parts for name in part.get("required", [])]
        names = dict.fromkeys([*(name for name in order if name in value), *value])
        return {n: _ordered(value[n], list(_of_name(n, parts)), root) for n in names}
    if isinstance(value, list):
        return [
            _ordered(each, list(_of_place(place, parts)), root) for place, each in enumerate(value)
        ]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _parts(schemas: list[Any], root: Any, seen: set[int]) -> Iterator[dict[str, Any]]:
    """The schemas that a value could be under, in the order in which they are written."""
    for schema in schemas:
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        given = False
        for word, value in schema.items():
            if word == "$ref" and str(value).startswith("#"):
                yield from _parts([at_pointer(root, value[1:])], root, seen)
            elif word in ("anyOf", "allOf", "oneOf"):
                yield from _parts(value, root, seen)
            elif word in ("if", "then", "else"):
                yield from _parts([value], root, seen)
            elif word in (*_OBJECT, "items", "prefixItems") and not given:
                given = True
                yield schema
        if isinstance(schema.get("dependencies"), dict):
            yield from _parts(list(schema["dependencies"].values()), root, seen)


def _of_name(name: str, parts: list[dict[str, Any]]) -> Iterator[Any]:
    for part in parts:
        patterns = part.get("patternProperties", {})
        found = [part["properties"][name]] if name in part.get("properties", {}) else []
        found += [each for pattern, each in patterns.items() if re.search(pattern, name)]
        yield from found or [part.get("additionalProperties")]


def _of_place(place: int, parts: list[dict[str, Any]]) -> Iterator[Any]:
    for part in parts:
        items = part.get("items")
        first = items if isinstance(items, list) else part.get("prefixItems", [])
        yield first[place] if place < len(first) else items


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
