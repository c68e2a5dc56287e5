"""`dataclass` of the standard library, cheap to declare.

The standard decorator compiles up to six methods of each class. A server's processes declare two
hundred classes, and most of them never get an object there. So `__init__` alone is compiled, for
the first object. Fields, slots and their checks are those of the standard library, so its
`replace`, `fields` and `asdict` work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, **options):
        """Return the class with the methods of a data class.

        Args:
            frozen, eq: as in `dataclasses.dataclass`.
            options: its `slots` and `kw_only`.
        """
        if cls is None:
            return partial(dataclass, frozen=frozen, eq=eq, **options)
        written = {name for name, value in vars(cls).items() if value is not None}
        if not cls.__doc__:  # the standard library would make one of the signature, slowly
            cls.__doc__ = cls.__name__
        cls = dataclasses.dataclass(cls, init=False, repr=False, eq=False, **options)
        for name, method in _methods(cls, frozen, eq).items():
            if name not in written:
                setattr(cls, name, method)
        return cls


def _methods(cls: Any, frozen: bool, eq: bool) -> dict[str, Any]:
    """Return the methods of a data class that has its fields."""
    methods: dict[str, Any] = {"__init__": _first_init(cls, frozen), "__repr__": _repr}
    if eq:
        fields = [field for field in dataclasses.fields(cls) if field.compare]
        hashed = [field.name for field in fields if field.hash is not False]
        methods["__eq__"] = _eq_of([field.name for field in fields])
        methods["__hash__"] = _hash_of(hashed) if frozen else None
    if frozen:
        methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
        methods |= {"__getstate__": _state, "__setstate__": _set_state}
    return methods


def _first_init(cls: Any, frozen: bool) -> Callable[..., None]:
    """Return an `__init__` that compiles the class's own, which replaces it."""

    init = None

    def first(self: object, *args: Any, **named: Any) -> None:
        nonlocal init
        if init is None:
            init = _init_of(cls, frozen)
            if cls.__init__ is first:  # else a wrapper calls this one
                cls.__init__ = init
        init(self, *args, **named)

    return first


def _init_of(cls: Any, frozen: bool) -> Callable[..., None]:
    values: dict[str, Any] = {"_set": object.__setattr__, "_made": dataclasses.MISSING}
    positional, named, body = ["self"], ["*"], ["pass"]
    for field in dataclasses.fields(cls):
        name = value = field.name
        given = name
        if field.default_factory is not dataclasses.MISSING:
            values[f"_make_{name}"] = field.default_factory
            given, value = f"{name}=_made", f"_make_{name}() if {name} is _made else {name}"
        elif field.default is not dataclasses.MISSING:
            values[f"_default_{name}"] = field.default
            given = f"{name}=_default_{name}"
        if not field.init:
            assert given == name, "`__post_init__` sets it; it has no default"
            continue
        (named if field.kw_only else positional).append(given)
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(positional + (named if len(named) > 1 else []))
    exec(f"def __init__({parameters}):\n " + "\n ".join(body), values)
    init: Callable[..., None] = values["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _eq_of(names: list[str]) -> Callable[[Any, object], Any]:
    values = attrgetter(*names) if names else type

    def equal(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return equal


def _hash_of(names: list[str]) -> Callable[[Any], int]:
    values = attrgetter(*names) if names else type
    return lambda self: hash(values(self))


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(self: object, name: str, *_: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
