"""State of one schema's rewriting: draft, references, work budget."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any, NamedTuple

from quire.system.records import dataclass
from quire.text.json_types import at_pointer, objects

Schema = dict[str, Any] | bool

MAX_WORK = 30_000
"""Most steps for one schema; each takes about 5 µs in a grammar worker."""
MAX_ALTERNATIVES = 64
"""Most alternatives that one rewrite may write."""
MAX_LEVELS = 110
"""Most levels of rewritten schemas; a request's own schema has at most 100."""
TYPES = ("null", "boolean", "number", "string", "array", "object")
DEFINITIONS = ("definitions", "$defs")
ANNOTATIONS = frozenset(
    ["title", "description", "default", "examples", "example", "$comment", "deprecated",
     "readOnly", "writeOnly", "$schema", "$id", "id", "$anchor", "$defs", "definitions",
     "contentEncoding", "contentMediaType", "contentSchema"]
)  # fmt: skip
"""Keywords that no value can violate."""
KEYWORDS = ANNOTATIONS | frozenset(
    ["$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "const", "contains",
     "dependencies", "dependentRequired", "dependentSchemas", "else", "enum", "exclusiveMaximum",
     "exclusiveMinimum", "format", "if", "items", "maxContains", "maxItems", "maxLength",
     "maxProperties", "maximum", "minContains", "minItems", "minLength", "minProperties", "minimum",
     "multipleOf", "not", "oneOf", "pattern", "patternProperties", "prefixItems", "properties",
     "propertyNames", "required", "then", "type", "unevaluatedItems", "unevaluatedProperties",
     "uniqueItems", "$recursiveAnchor", "$recursiveRef", "$dynamicAnchor", "$dynamicRef"]
)  # fmt: skip
"""Keywords of all drafts; any other word has no effect."""
MARK = "x-closed"
"""Holds the `Names` that an object may have; see `closing`."""
_SINCE = {
    "const": 6, "contains": 6, "propertyNames": 6, "if": 7, "then": 7, "else": 7,
    "dependentRequired": 8, "dependentSchemas": 8, "minContains": 8, "maxContains": 8,
    "unevaluatedItems": 8, "unevaluatedProperties": 8, "prefixItems": 9,
}  # fmt: skip
_UNTIL = {"dependencies": 7, "additionalItems": 8}
_DRAFTS = {"draft-04": 4, "draft-06": 6, "draft-07": 7, "2019-09": 8, "2020-12": 9}


_NUMBER, _COUNT, _SCHEMA, _NAMES = (int, float), (int,), (dict, bool), (list,)
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("properties", "patternProperties", "definitions", "$defs"), (dict,)),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), (dict,)),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems", "enum", "required"), _NAMES),
    **dict.fromkeys(("not", "if", "then", "else", "contains", "propertyNames"), _SCHEMA),
    **dict.fromkeys(("additionalProperties", "additionalItems"), _SCHEMA),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _COUNT),
    **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), _COUNT),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    "items": (dict, bool, list), "type": (str, list), "pattern": (str,), "format": (str,),
    "$ref": (str,),
}  # fmt: skip


class Names(NamedTuple):
    """Names of properties, and patterns of names. JSON cannot contain one, so marks are safe."""

    names: list[str]
    patterns: list[str]

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Names | None:
        """Return the mark of a schema, if it has one."""
        found = schema.get(MARK)
        return found if isinstance(found, Names) else None


class SchemaError(ValueError):
    """A schema that cannot be enforced; the text has the keyword and the reason."""


@dataclass
class Scope:
    """State of one schema's rewriting.

    Attributes:
        draft: 4, 6, 7, 8 (2019-09) or 9 (2020-12).
        opaque: a nested `$id` changes the meaning of references, so none is resolved.
        work: remaining steps.
        spent: error message once no steps remain.
        level: current depth of the walk.
        memo: upper bounds by a schema's id() and depth; it holds the schema, so the id stays valid.
        met: whether a value may satisfy several schemas at once, stored the same way.
    """

    root: Mapping[str, Any]
    draft: int = 9
    opaque: bool = False
    work: int = MAX_WORK
    spent: str = "not, oneOf, if or dependencies combine too many alternatives"
    level: int = 0
    memo: dict[tuple[int, int], tuple[Any, Any]] = field(default_factory=dict)
    met: dict[tuple[tuple[int, int], ...], tuple[Any, bool]] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Mapping[str, Any]) -> Scope:
        named = str(root.get("$schema", ""))
        draft = next((n for name, n in _DRAFTS.items() if name in named), 9)
        word = "id" if draft == 4 else "$id"
        ids = [each.get(word) for each in objects([*root.values()])]
        return cls(root, draft, any(isinstance(i, str) and not i.startswith("#") for i in ids))

    def known(self, keyword: str) -> bool:
        """Return whether the draft defines the keyword; validators ignore it otherwise."""
        return _SINCE.get(keyword, 0) <= self.draft <= _UNTIL.get(keyword, 9)

    def pay(self, steps: int = 1) -> None:
        """Raise `SchemaError` once the budget is spent."""
        self.work -= steps
        if self.work < 0:
            raise SchemaError(self.spent)

    def enter(self) -> None:
        """Go one level down; raise `SchemaError` if references lead in circles."""
        self.pay()
        self.level += 1
        if self.level > MAX_LEVELS:
            raise SchemaError("its references, not, oneOf, if or dependencies lead in circles")

    def target(self, reference: Any) -> Any:
        """Return the schema that `#` or `#/…` refers to; None for other references."""
        if self.opaque or not isinstance(reference, str) or not reference.startswith("#"):
            return None
        return at_pointer(self.root, reference[1:])


def listed(value: Any) -> list[Any]:
    """Return a list; an empty one for a value of another type."""
    return value if isinstance(value, list) else []


def canonical(value: Any) -> str:
    """Return a key that is equal for values that are equal in JSON Schema."""
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False)


def check_types(schema: Any) -> None:
    """Raise `SchemaError` for a schema or a keyword of the wrong type."""
    if not isinstance(schema, dict):
        raise SchemaError("a schema is an object or a boolean")
    for word, value in schema.items():
        kinds = _KINDS.get(word)
        if kinds is None:
            continue
        flag = isinstance(value, bool) and bool not in kinds and not word.startswith("exclusive")
        wide = isinstance(value, float) and not math.isfinite(value)
        if flag or wide or not isinstance(value, kinds):
            raise SchemaError(f"{word} of a schema has a value of the wrong type")
    if not all(isinstance(name, str) for name in schema.get("required", [])):
        raise SchemaError("required of a schema is a list of names")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value
