"""Close objects that name their properties, unless the schema allows others.

JSON Schema allows further properties unless it forbids them. Models write them, and callers do not
expect them. So each object is treated as if it had `unevaluatedProperties: false`.

Several schemas may describe one object: those within `allOf`, `$ref`, `then` and so on. So
`with_marks` marks each object of the original schema with its allowed names, under `MARK`. The
rewrites ignore the marks, so `not` and `oneOf` exclude the same values as before. `closed` then
writes the marks as `additionalProperties: false`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from quire.system.records import dataclass
from quire.text.json_schema import scope

MAX_WORK = 60_000
"""Most names to collect for one schema."""
_UNIONS = ("anyOf", "oneOf")
_MAPS = ("properties", "patternProperties")
_ONES = ("additionalProperties", "additionalItems", "items")
_OF_OBJECTS = frozenset(
    [*_MAPS, *_UNIONS, "additionalProperties", "allOf", "dependencies", "dependentSchemas", "if",
     "then", "else", "$ref"]
)  # fmt: skip
"""Keywords of schemas that may restrict properties."""
_PLAIN_REFERENCE = re.compile(r"#|#/(definitions|\$defs)/[^/]+")


@dataclass
class Said:
    """The properties of one object, by some of its schemas.

    Attributes:
        names: name → its schemas.
        patterns: pattern → its schemas.
        closes: a schema has `properties` or `patternProperties`, perhaps empty.
        opened: a schema allows other names, or restricts their values.
    """

    names: dict[str, list[Any]] = field(default_factory=dict)
    patterns: dict[str, list[Any]] = field(default_factory=dict)
    closes: bool = False
    opened: bool = False

    def add(self, other: Said) -> None:
        for mine, more in ((self.names, other.names), (self.patterns, other.patterns)):
            for name, schemas in more.items():
                mine.setdefault(name, []).extend(schemas)
        self.closes |= other.closes
        self.opened |= other.opened

    def __bool__(self) -> bool:
        return bool(self.names or self.patterns or self.closes or self.opened)


def with_marks(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with a mark at each object to close.

    Raises:
        SchemaError: too many schemas describe the same objects.
    """
    return _Marking(schema).whole()


def closed(schema: Any, *, keep: bool = True) -> Any:
    """Return the schema with its marks written as `additionalProperties`.

    Args:
        keep: apply the marks; otherwise drop them.
    """
    if isinstance(schema, list):
        return [closed(each, keep=keep) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for word, value in schema.items():
        if word in (*_MAPS, *scope.DEFINITIONS) and isinstance(value, dict):
            found[word] = {name: closed(each, keep=keep) for name, each in value.items()}
        elif word in (*_ONES, "allOf", "anyOf", "prefixItems"):
            found[word] = closed(value, keep=keep)
        elif word == "oneOf":  # closing a branch would change which values match exactly one
            found[word] = closed(value, keep=False)
        elif word != scope.MARK:
            found[word] = value
    alone = scope.Names.of(schema)
    return found if alone is None or not keep else _with_these_alone(found, alone)


def _with_these_alone(schema: dict[str, Any], alone: scope.Names) -> dict[str, Any]:
    """Return the schema without other names; a malformed schema is unchanged."""
    if not (
        isinstance(schema.get("allOf", []), list)
        and all(isinstance(schema.get(word, {}), dict) for word in _MAPS)
    ):
        return schema
    if schema.keys() & {"allOf", "anyOf", "oneOf", "$ref"}:
        return {**schema, "allOf": [*schema.get("allOf", []), _with_these_alone({}, alone)]}
    found = {**schema, "additionalProperties": False}
    for word, names in zip(_MAPS, alone, strict=True):
        given = schema.get(word, {})
        if added := [name for name in names if name not in given]:
            found[word] = {**given, **dict.fromkeys(added, True)}
    return found


class _Marking:
    """One walk over a schema, object by object."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._scope = scope.Scope.of(root)
        self._scope.work = MAX_WORK
        self._scope.spent = "too many schemas speak of the properties of one object"
        self._said: dict[int, tuple[Any, Said]] = {}
        self._copies: dict[tuple[str, bool], str] = {}
        self._missing: list[tuple[str, bool]] = []
        self._taken = {n for word in scope.DEFINITIONS for n in _dict(root.get(word))}

    def whole(self) -> dict[str, Any]:
        found: dict[str, Any] = self._place(self._root, Said())
        copies: dict[str, Any] = {}
        while self._missing:
            reference, whole = self._missing.pop()
            target = self._scope.target(reference)
            copy = self._place(target, Said()) if whole else self._part(target, self._of(target))
            copies[self._copies[reference, whole]] = copy
        return {**found, "$defs": {**found.get("$defs", {}), **copies}} if copies else found

    def _place(self, schema: Any, others: Said) -> Any:
        """Return a schema with marks for its value and the values within.

        Args:
            others: properties of the same value by other schemas.
        """
        if not isinstance(schema, dict):
            return schema
        self._scope.pay()
        if not others and not schema.keys() & _OF_OBJECTS:
            return self._within(schema, others)
        words = schema.keys() & scope.KEYWORDS - scope.ANNOTATIONS
        if words == {"$ref"} and not others:
            return self._with_reference(self._within(schema, Said()), whole=True)
        if words == {"allOf"} and len(scope.listed(schema["allOf"])) == 1:
            alone = self._place(schema["allOf"][0], others)
            return {**self._within(schema, Said(), skip="allOf"), "allOf": [alone]}
        outside = self._both(self._outside_of_unions(schema), others)
        whole = self._both(self._of(schema), others)
        if "additionalProperties" in schema or outside.opened or not _may_be_object(schema):
            return self._part(schema, whole)
        unions = [word for word in _UNIONS if scope.listed(schema.get(word))]
        if len(unions) == 1 and self._adds_names(schema[unions[0]], outside):
            found = self._part(schema, outside, skip=unions[0])
            found[unions[0]] = [self._place(each, outside) for each in schema[unions[0]]]
            return found
        found = self._part(schema, whole)
        if whole.closes and not whole.opened:
            found[scope.MARK] = scope.Names(list(whole.names), list(whole.patterns))
        return found

    def _part(self, schema: Any, whole: Said, skip: str | None = None) -> Any:
        """Return a schema with marks for the values within, but not for its own value.

        Args:
            whole: properties by all schemas of the value.
            skip: a keyword to leave empty, for the caller to fill in.
        """
        if not isinstance(schema, dict):
            return schema
        found = self._within(schema, whole, skip)
        return self._with_reference(found, whole=False) if "$ref" in found else found

    def _within(self, schema: dict[str, Any], whole: Said, skip: str | None = None) -> Any:
        self._scope.pay()
        found: dict[str, Any] = {}
        for word, value in schema.items():
            if word == skip:
                found[word] = None
            elif word in _MAPS and isinstance(value, dict):
                said = whole.names if word == "properties" else whole.patterns
                found[word] = {
                    name: self._place(each, self._elsewhere(each, said.get(name, [])))
                    for name, each in value.items()
                }
            elif word in scope.DEFINITIONS and isinstance(value, dict):
                found[word] = {name: self._place(each, Said()) for name, each in value.items()}
            elif word in (*_ONES, "prefixItems"):
                found[word] = (
                    [self._place(each, Said()) for each in value]
                    if isinstance(value, list)
                    else self._place(value, Said())
                )
            elif word in ("allOf", *_UNIONS) and isinstance(value, list):
                found[word] = [self._part(each, whole) for each in value]
            elif word in ("then", "else"):
                found[word] = self._part(value, whole)
            elif word in ("dependentSchemas", "dependencies") and isinstance(value, dict):
                found[word] = {name: self._part(each, whole) for name, each in value.items()}
            elif word != scope.MARK:
                found[word] = value
        return found

    def _with_reference(self, schema: dict[str, Any], *, whole: bool) -> dict[str, Any]:
        """Return the schema with a reference to a copy, if the target needs other marks.

        Args:
            whole: no other schema describes the value. Definitions are marked that way.
        """
        reference = schema["$ref"]
        if whole and isinstance(reference, str) and _PLAIN_REFERENCE.fullmatch(reference):
            return schema
        target = self._scope.target(reference)
        if not isinstance(target, dict) or (not whole and not self._of(target)):
            return schema
        key = reference, whole
        if key not in self._copies:
            name = f"{'whole' if whole else 'part'}-{len(self._copies)}"
            while name in self._taken:
                name += "-"
            self._copies[key] = name
            self._missing.append(key)
        return {**schema, "$ref": f"#/$defs/{self._copies[key]}"}

    def _of(self, schema: Any) -> Said:
        """Return the properties of a value by a schema and its parts."""
        if not isinstance(schema, dict):
            return Said()
        if id(schema) not in self._said:
            self._said[id(schema)] = schema, Said()  # ends circles of references
            self._scope.enter()
            found = self._outside_of_unions(schema)
            for word in _UNIONS:
                for each in scope.listed(schema.get(word)):
                    self._add(found, each)
            self._scope.level -= 1
            self._said[id(schema)] = schema, found
        return self._said[id(schema)][1]

    def _outside_of_unions(self, schema: Mapping[str, Any]) -> Said:
        found = Said()
        for word, said in (("properties", found.names), ("patternProperties", found.patterns)):
            if isinstance(schema.get(word), dict):
                found.closes = True
                self._scope.pay(len(schema[word]))
                for name, each in schema[word].items():
                    said.setdefault(name, [])
                    if isinstance(each, dict) and each.keys() & _OF_OBJECTS:
                        said[name].append(each)
        for name in _required(schema):
            found.names.setdefault(name, [])
        rest = ("additionalProperties", "unevaluatedProperties")
        found.opened = any(schema.get(word, False) is not False for word in rest)
        for each in self._parts(schema):
            self._add(found, each)
        return found

    def _add(self, found: Said, schema: Any) -> None:
        said = self._of(schema)
        self._scope.pay(len(said.names) + len(said.patterns))
        found.add(said)

    def _both(self, one: Said, other: Said) -> Said:
        found = Said()
        for each in (one, other):
            self._scope.pay(len(each.names) + len(each.patterns))
            found.add(each)
        return found

    def _parts(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the schemas within that describe the same value, except those of unions."""
        yield from scope.listed(schema.get("allOf"))
        yield from (schema[word] for word in ("if", "then", "else") if word in schema)
        for word in ("dependentSchemas", "dependencies"):
            yield from _dict(schema.get(word)).values()
        if "$ref" in schema:
            yield self._scope.target(schema["$ref"])

    def _adds_names(self, branches: list[Any], outside: Said) -> bool:
        """Return whether a branch has names that `outside` lacks, or opens or closes the object."""
        said = [self._of(each) for each in branches]
        return any(
            each.opened
            or each.names.keys() - outside.names.keys()
            or each.patterns.keys() - outside.patterns.keys()
            or (each.closes and not outside.closes)
            for each in said
        )

    def _elsewhere(self, schema: Any, schemas: list[Any]) -> Said:
        """Return the properties by all of `schemas` except `schema`."""
        found = Said()
        for each in schemas:
            if each is not schema:
                self._add(found, each)
        return found


def _required(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names that may be required."""
    lists = [schema.get("required")]
    for word in ("dependentRequired", "dependencies"):
        lists += _dict(schema.get(word)).values()
    for each in lists:
        yield from (name for name in scope.listed(each) if isinstance(name, str))


def _may_be_object(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type", "object")
    return kinds == "object" or (isinstance(kinds, list) and "object" in kinds)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
