"""Follow a request's types: remove fields without effect from its JSON, and list allowed values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from typing import Any

from msgspec import inspect

from quire.server.errors import invalid, not_supported
from quire.server.notices import Notice
from quire.server.rules import EMPTY, rules_of

MAX_UNKNOWN = 256
"""Most names of unknown fields in a body; more cannot be a mistake."""
OBJECTS_PER_TURN = 1024
"""Objects between two pauses for the event loop: 1 to 2 ms."""
_LONGEST_NAME = 64
"""Longer names are not checked for typos."""
_SIMILAR = 0.85
"""Least share of equal characters of a typo."""
_TEXTS = {inspect.StrType, inspect.AnyType, inspect.LiteralType}
"""Types of which a string may be a value."""
_STEP = re.compile(r"\[[^\]]*\]|[^.\[\]]+")

Path = tuple["Path", str | int] | None
"""A value's path: that of its object or array, and its key or index there."""


class Relaxed:
    """Walks through a value and changes it in place.

    Args:
        strict: refuse what would be ignored (`--strict-fields`).
    """

    def __init__(self, value: Any, kind: Any, where: str = "", *, strict: bool = False) -> None:
        self.notices: list[Notice] = []
        self._strict = strict
        self._noticed: set[tuple[type, str]] = set()
        self._num_unknown = 0
        root: Path = (None, where) if where else None
        self._stack: list[tuple[Any, _Shape, Path]] = [(value, _shape_of(kind), root)]

    def steps(self) -> Iterator[None]:
        """Walk, and yield after every `OBJECTS_PER_TURN` objects.

        Raises:
            ApiError: 400 for a field that would change the answer, or that is misspelt.
        """
        seen = 0
        while self._stack:
            value, shape, path = self._stack.pop()
            seen += 1
            if isinstance(value, dict):
                if (fields := shape.of_object(value)) is not None:
                    self._object(value, fields, path)
            elif isinstance(value, list) and shape.item is not None:
                item = shape.item
                self._stack += [
                    (each, item, (path, index))
                    for index, each in reversed([*enumerate(value)])
                    if isinstance(each, dict | list)
                ]
            if seen % OBJECTS_PER_TURN == 0:
                yield

    def _object(self, value: dict[str, Any], fields: _Fields, path: Path) -> None:
        unknown = value.keys() - fields.shapes.keys()
        for name in value if unknown else ():
            if name in unknown:
                self._drop(name, value, fields, path)
        for name in unknown:
            del value[name]
        for name in () if self._strict else (fields.nulls | fields.no_texts) & value.keys():
            if value[name] in (EMPTY if name in fields.nulls else ("",)):
                self._notice(fields, (path, name), "It asks for nothing.")
                del value[name]
        for name in fields.inner & value.keys():
            if isinstance(found := value[name], dict | list):
                self._stack.append((found, fields.shapes[name], (path, name)))

    def _drop(self, name: str, given: dict[str, Any], fields: _Fields, path: Path) -> None:
        """Remove a field; raises `ApiError` if it must not be ignored."""
        place: Path = (path, name)
        value, rule = given[name], fields.rules.get(name)
        if value is None and (rule is not None or not self._strict):
            return
        if rule is not None:
            refuses = not rule.is_plain(value) if self._strict else not rule.ignores(value)
            twin = given.get(rule.twin or "")
            # 1 equals true, but does not mean it.
            if refuses and not self._strict and type(value) is type(twin) and value == twin:
                self._notice(fields, place, f"It has no effect: {rule.twin} is the same.")
                return
            if refuses:
                raise not_supported(_written(place), rule.reason)
            self._notice(fields, place, f"It has no effect: {rule.reason}")
            return
        if (fields.kind, name) in self._noticed:
            return
        self._num_unknown += 1
        if self._num_unknown > MAX_UNKNOWN:
            raise invalid(f"The body has more than {MAX_UNKNOWN} unknown fields.", None)
        meant = similar(name, fields.names)
        if self._strict or meant is not None:
            end = f"; did you mean {meant}?" if meant else "."
            raise invalid(f"Unknown field {_written(place)}{end}", _written(place))
        self._notice(fields, place, "This server does not know the field; it has no effect.")

    def _notice(self, fields: _Fields, place: Path, message: str) -> None:
        """Add one notice per field, even if many objects have it."""
        assert place is not None
        key = (fields.kind, str(place[1]))
        if key not in self._noticed:
            self._noticed.add(key)
            self.notices.append(Notice(_written(place), message))


def relax(value: Any, kind: Any, where: str = "", *, strict: bool = False) -> list[Notice]:
    """Remove fields without effect in a `kind` from `value`, in place; return a notice of each.

    Raises:
        ApiError: 400 for a field that would change the answer, or that is misspelt.
    """
    relaxed = Relaxed(value, kind, where, strict=strict)
    for _ in relaxed.steps():
        pass
    return relaxed.notices


def similar(name: str, known: Iterable[str]) -> str | None:
    """Return the field that `name` probably misspells."""
    if len(name) > _LONGEST_NAME:
        return None
    plain = _plain(name)
    letters = _letters(plain)
    near = {
        each: field
        for each, others, field in _prepared(tuple(known))
        if (letters ^ others).bit_count() <= (1 - _SIMILAR) * (len(plain) + len(each))
    }
    close = difflib.get_close_matches(plain, near, n=1, cutoff=_SIMILAR)
    return near[close[0]] if close else None


@lru_cache
def _prepared(known: tuple[str, ...]) -> list[tuple[str, int, str]]:
    """Return each field's plain name, its letters and the field."""
    return [(plain, _letters(plain), each) for each in known for plain in [_plain(each)]]


def _letters(text: str) -> int:
    """Return the set of a text's letters as bits.

    A letter that only one of two texts has matches nothing in the other. So few names are left for
    `difflib`, which takes a thousand times as long.
    """
    bits = 0
    for letter in set(text):
        bits |= 1 << (ord(letter) & 63)
    return bits


def choices_at(kind: Any, path: str) -> list[str]:
    """Return the values of the field at `path` ("messages[0].role") in a `kind`; none if any is
    allowed. msgspec's errors name only the wrong one."""
    found = _alternatives(_known(kind))
    for step in _STEP.findall(path):
        inside = [inner for outer in found for inner in _inside(outer, step)]
        found = [each for inner in inside for each in _alternatives(inner)]
    literals = [each.values for each in found if isinstance(each, inspect.LiteralType)]
    return sorted({str(value) for values in literals for value in values})


def _plain(name: str) -> str:
    """Return a name without case and separators: `maxTokens`, `max-tokens`."""
    return name.lower().replace("_", "").replace("-", "")


def _written(path: Path) -> str:
    """Return a path as errors write it: `messages[0].content`."""
    steps: list[str | int] = []
    while path is not None:
        path, step = path
        steps.append(step)
    text = ""
    for step in reversed(steps):
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


class _Fields:
    def __init__(self, struct: inspect.StructType) -> None:
        self.kind = struct.cls
        self.rules = rules_of(struct.cls)
        self.shapes = {field.encode_name: _Shape([field.type]) for field in struct.fields}
        self.nulls = {
            field.encode_name for field in struct.fields if isinstance(field.type, inspect.NoneType)
        }
        self.names = [name for name in self.shapes if name not in self.nulls]
        if struct.tag_field is not None:
            self.shapes[struct.tag_field] = _Shape([])

    @cached_property
    def no_texts(self) -> set[str]:
        """Return the fields that an empty text leaves unset."""
        return {name for name, shape in self.shapes.items() if not shape.may_be_text}

    @cached_property
    def inner(self) -> set[str]:
        """Return the fields that may have fields of their own."""
        return {name for name, shape in self.shapes.items() if shape.structs or shape.item}


class _Shape:
    """The structs that a value may be and, for a list, the shape of its entries.

    Computed on demand, because types may contain themselves.
    """

    def __init__(self, types: list[inspect.Type]) -> None:
        self._types: list[inspect.Type] = []
        for each in types:
            self._types += _alternatives(each)

    @cached_property
    def structs(self) -> dict[Any, _Fields]:
        """Return structs by their tags."""
        found = [each for each in self._types if isinstance(each, inspect.StructType)]
        return {each.tag: _Fields(each) for each in found}

    @cached_property
    def may_be_text(self) -> bool:
        return not self._types or not _TEXTS.isdisjoint(map(type, self._types))

    @cached_property
    def item(self) -> _Shape | None:
        """Return the shape of a list's entries, if they need a check."""
        lists = [each.item_type for each in self._types if isinstance(each, inspect.ListType)]
        shape = _Shape(lists)
        return shape if shape.structs or (lists and shape.item) else None

    @cached_property
    def _tag_field(self) -> str | None:
        fields = (each.tag_field for each in self._types if isinstance(each, inspect.StructType))
        return next(fields, None)

    def of_object(self, value: dict[str, Any]) -> _Fields | None:
        """Return the struct that an object becomes; None if there is none, or the tag is wrong."""
        tag = None if self._tag_field is None else value.get(self._tag_field)
        return self.structs.get(tag) if tag is None or isinstance(tag, str | int) else None


def _alternatives(kind: inspect.Type) -> list[inspect.Type]:
    match kind:
        case inspect.UnionType():
            return [inner for each in kind.types for inner in _alternatives(each)]
        case inspect.Metadata():
            return _alternatives(kind.type)
    return [kind]


def _inside(kind: inspect.Type, step: str) -> Iterator[inspect.Type]:
    match kind:
        case inspect.ListType():
            yield kind.item_type
        case inspect.DictType():
            yield kind.value_type
        case inspect.StructType():
            if step == kind.tag_field:
                yield inspect.LiteralType((str(kind.tag),))
            yield from (field.type for field in kind.fields if field.encode_name == step)


_known = lru_cache(inspect.type_info)


@lru_cache
def _shape_of(kind: Any) -> _Shape:
    return _Shape([_known(kind)])
