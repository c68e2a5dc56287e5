"""Close objects that name their properties, unless the schema allows others.

JSON Schema allows further properties unless it forbids them. Models write them, and callers do not
expect them. So each object is treated as if it had `unevaluatedProperties: false`.

Several schemas may describe one object: those of `allOf`, `$ref`, `anyOf` and `oneOf`. The object
is closed to the names of all of them together. So a schema has a place, where it describes a value
alone, or it is a part of such a schema. Only places are closed. A definition is a place; parts
refer to an open copy of it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import field
from typing import Any

from quire.system.records import dataclass
from quire.text.json_schema.keywords import SchemaError, mapped
from quire.text.json_types import at_pointer, objects

MAX_WORK = 60_000
"""Most names to collect for one schema."""
MAX_LEVELS = 110
"""Most schemas from one to the next that describes the same object."""
_UNIONS = ("anyOf", "oneOf")
_PARTS = ("allOf", *_UNIONS)
_NAMES = ("properties", "patternProperties")
_OPENING = ("additionalProperties", "unevaluatedProperties")
_OF_OBJECTS = frozenset([*_NAMES, *_UNIONS, "additionalProperties", "allOf", "$ref"])
"""Keywords of schemas that may restrict properties."""
_DEFINITION = re.compile(r"#|#/(definitions|\$defs)/[^/]+")


@dataclass
class Names:
    """The properties of one object, by some of its schemas.

    Attributes:
        names, patterns: number of schemas of each that may describe an object.
        closes: a schema has `properties` or `patternProperties`, perhaps empty.
        opened: a schema allows other names, or restricts their values.
    """

    names: Counter[str] = field(default_factory=Counter)
    patterns: Counter[str] = field(default_factory=Counter)
    closes: bool = False
    opened: bool = False

    def add(self, other: Names) -> None:
        self.names.update(other.names)
        self.patterns.update(other.patterns)
        self.closes |= other.closes
        self.opened |= other.opened

    def __bool__(self) -> bool:
        return bool(self.names or self.patterns or self.closes or self.opened)

    def adds_to(self, other: Names) -> bool:
        """Return whether it has names that the other lacks, or opens or closes the object."""
        more = self.names.keys() - other.names.keys() or self.patterns.keys() - other.patterns
        return bool(more) or self.opened or (self.closes and not other.closes)


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with `additionalProperties: false` at each object to close.

    Raises:
        SchemaError: too many schemas describe the same objects, or references lead in circles.
    """
    return _Closing(schema).whole()


class _Closing:
    """One walk over a schema, object by object."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        ids = [each.get("$id") for each in objects([*root.values()])]
        self._opaque = any(isinstance(each, str) and not each.startswith("#") for each in ids)
        self._work, self._level = MAX_WORK, 0
        self._found: dict[int, Names] = {}  # by the schema's id()
        self._copies: dict[tuple[str, bool], str] = {}
        self._missing: list[tuple[str, bool]] = []

    def whole(self) -> dict[str, Any]:
        found: dict[str, Any] = self._place(self._root)
        copies: dict[str, Any] = {}
        while self._missing:
            reference, is_part = key = self._missing.pop()
            target = self._target(reference)
            copies[self._copies[key]] = self._part(target) if is_part else self._place(target)
        return {**found, "$defs": {**_dict(found.get("$defs")), **copies}} if copies else found

    def _place(self, schema: Any, others: Names | None = None) -> Any:
        """Return the schema of a value, closed.

        Args:
            others: properties of the same value by other schemas.
        """
        if not isinstance(schema, dict):
            return schema
        self._pay(1)
        others = others or Names()
        words = schema.keys() & _OF_OBJECTS
        if not others and words <= {"$ref"}:
            found = self._within(schema, others)
            reference = str(schema.get("$ref"))
            is_placed = _DEFINITION.fullmatch(reference)
            return found if is_placed else self._with_copy(found, reference, is_part=False)
        if words == {"allOf"} and len(_list(schema["allOf"])) == 1:
            inside = self._within({**schema, "allOf": []}, others)
            return {**inside, "allOf": [self._place(schema["allOf"][0], others)]}
        outside, whole = self._outside_of_unions(schema), Names()
        self._add(outside, others)
        self._add(whole, self._of(schema))
        self._add(whole, others)
        if "additionalProperties" in schema or outside.opened or not _may_be_object(schema):
            return self._part(schema, whole)
        unions = [word for word in _UNIONS if _list(schema.get(word))]
        if len(unions) == 1:
            branches = schema[unions[0]]
            if any(self._of(each).adds_to(outside) for each in branches):
                found = self._part({**schema, unions[0]: []}, outside)
                return {**found, unions[0]: [self._place(each, outside) for each in branches]}
        found = self._part(schema, whole)
        return _with_these_alone(found, whole) if whole.closes and not whole.opened else found

    def _part(self, schema: Any, whole: Names | None = None) -> Any:
        """Return a schema that is open itself, while the values within are closed.

        Args:
            whole: properties by all schemas of the value.
        """
        if not isinstance(schema, dict):
            return schema
        found = self._within(schema, whole or self._of(schema))
        return self._with_copy(found, str(schema.get("$ref")), is_part=True)

    def _within(self, schema: dict[str, Any], whole: Names) -> dict[str, Any]:
        self._pay(1)
        found = mapped(
            {word: value for word, value in schema.items() if word not in (*_NAMES, *_PARTS)},
            self._place,
        )
        for word, counts in zip(_NAMES, (whole.names, whole.patterns), strict=True):
            if isinstance(schema.get(word), dict):
                found[word] = {
                    name: self._part(each) if counts[name] > 1 else self._place(each)
                    for name, each in schema[word].items()
                }
        for word in _PARTS:
            if isinstance(schema.get(word), list):
                found[word] = [self._part(each, whole) for each in schema[word]]
        return {word: found.get(word, value) for word, value in schema.items()}

    def _with_copy(
        self, schema: dict[str, Any], reference: str, *, is_part: bool
    ) -> dict[str, Any]:
        """Return the schema with a reference to a copy of the target, as a part or as a place."""
        if not isinstance(self._target(reference), dict):
            return schema
        key = reference, is_part
        if key not in self._copies:
            name = f"copy-{len(self._copies)}"
            while name in _dict(self._root.get("$defs")):
                name += "-"
            self._copies[key] = name
            self._missing.append(key)
        return {**schema, "$ref": f"#/$defs/{self._copies[key]}"}

    def _of(self, schema: Any) -> Names:
        """Return the properties of a value by a schema and its parts."""
        if not isinstance(schema, dict):
            return Names()
        if id(schema) not in self._found:
            self._found[id(schema)] = Names()  # ends circles of references
            self._level += 1
            if self._level > MAX_LEVELS:
                raise SchemaError("its references, allOf, anyOf or oneOf lead in circles")
            found = self._outside_of_unions(schema)
            for word in _UNIONS:
                for each in _list(schema.get(word)):
                    self._add(found, self._of(each))
            self._level -= 1
            self._found[id(schema)] = found
        return self._found[id(schema)]

    def _outside_of_unions(self, schema: dict[str, Any]) -> Names:
        found = Names(opened=any(schema.get(word, False) is not False for word in _OPENING))
        for word, counts in zip(_NAMES, (found.names, found.patterns), strict=True):
            if isinstance(given := schema.get(word), dict):
                found.closes = True
                self._pay(len(given))
                counts.update({name: int(_restricts(each)) for name, each in given.items()})
        found.names.update({n: 0 for n in _list(schema.get("required")) if isinstance(n, str)})
        parts = _list(schema.get("allOf"))
        if "$ref" in schema:
            target = self._target(schema["$ref"])
            found.opened |= target is None
            parts = [*parts, target]
        for each in parts:
            self._add(found, self._of(each))
        return found

    def _add(self, found: Names, more: Names) -> None:
        self._pay(len(more.names) + len(more.patterns))
        found.add(more)

    def _target(self, reference: Any) -> Any:
        """Return the schema that `#` or `#/…` refers to; None for other references."""
        if self._opaque or not isinstance(reference, str) or not reference.startswith("#"):
            return None
        return at_pointer(self._root, reference[1:])

    def _pay(self, steps: int) -> None:
        self._work -= steps
        if self._work < 0:
            raise SchemaError("too many schemas speak of the properties of one object")


def _with_these_alone(schema: dict[str, Any], whole: Names) -> dict[str, Any]:
    """Return the schema without other names; a malformed schema is unchanged."""
    parts = schema.get("allOf", [])
    if not isinstance(parts, list) or not all(isinstance(schema.get(w, {}), dict) for w in _NAMES):
        return schema
    if schema.keys() & {*_PARTS, "$ref"}:
        return {**schema, "allOf": [*parts, _with_these_alone({}, whole)]}
    found = {**schema, "additionalProperties": False}
    for word, names in zip(_NAMES, (whole.names, whole.patterns), strict=True):
        given = schema.get(word, {})
        if added := [name for name in names if name not in given]:
            found[word] = {**given, **dict.fromkeys(added, True)}
    return found


def _restricts(schema: Any) -> bool:
    """Return whether a schema may restrict the properties of its value."""
    return isinstance(schema, dict) and not _OF_OBJECTS.isdisjoint(schema)


def _may_be_object(schema: dict[str, Any]) -> bool:
    kinds = schema.get("type", "object")
    return kinds == "object" or (isinstance(kinds, list) and "object" in kinds)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
