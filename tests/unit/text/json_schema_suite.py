"""The JSON-Schema-Test-Suite against the grammars: what is refused, and where they disagree.

    python -m tests.unit.text.json_schema_suite FOLDER

A schema is refused, or each instance of its tests is accepted or not as the suite says. An instance
is written as a model would write it: properties in the schema's order, whole numbers without a
fraction.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.text.grammar import new_matcher
from quire.text.tokenizers.vocabulary import byte_tokenizer
from tests.matching import takes


@dataclass
class Agreement:
    """Counts over a folder of the suite.

    Attributes:
        refused: schemas, by why.
        unsound: what was accepted and is invalid, as "file: schema: instance".
        narrow: what is valid and was not accepted.
    """

    schemas: int = 0
    agreed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    unsound: list[str] = field(default_factory=list)
    narrow: list[str] = field(default_factory=list)


def run_suite(files: list[Path], root: Path, *, close: bool = False) -> Agreement:
    """Check every schema and instance of these files.

    Args:
        close: objects have no properties but those of their schemas, which the suite says nothing
            of: what it calls valid may then be not accepted.
    """
    tokenizer, result = byte_tokenizer(), Agreement()
    for file in files:
        for group in json.loads(file.read_text()):
            result.schemas += 1
            schema = group["schema"]
            try:
                params = StructuredOutputsParams(json=schema, disable_additional_properties=close)
                matcher = new_matcher(tokenizer, params)
            except InvalidRequestError as error:
                result.refused[str(error)] += 1
                continue
            for test in group["tests"]:
                matcher.reset()
                written = json.dumps(_as_written(test["data"], schema), ensure_ascii=False)
                accepted = takes(matcher, list(written.encode()))
                name = f"{file.relative_to(root)}: {group['description']}: {test['description']}"
                if accepted == test["valid"]:
                    result.agreed += 1
                else:
                    (result.unsound if accepted else result.narrow).append(name)
                if matcher.is_error():
                    matcher = new_matcher(tokenizer, params)
    return result


def _as_written(data: Any, schema: Any) -> Any:
    """`data` with whole numbers as integers, and properties in the order of the schema's."""
    if isinstance(data, float) and data.is_integer():
        return int(data)
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    if isinstance(data, dict):
        known = [name for name in properties if name in data]
        rest = [name for name in data if name not in known]
        return {n: _as_written(data[n], properties.get(n)) for n in [*known, *rest]}
    if isinstance(data, list):
        items = schema.get("items") if isinstance(schema, dict) else None
        return [_as_written(each, items) for each in data]
    return data


def main(folder: Path) -> None:
    files = sorted(folder.rglob("*.json"))
    result = run_suite(files, folder)
    print(f"{result.schemas} schemas, {sum(result.refused.values())} refused:")
    for reason, count in result.refused.most_common():
        print(f"  {count:4} {reason}")
    print(f"{result.agreed} instances agree")
    print(f"{len(result.unsound)} accepted, though invalid:", *result.unsound, sep="\n  ")
    print(f"{len(result.narrow)} not accepted, though valid:", *result.narrow, sep="\n  ")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
