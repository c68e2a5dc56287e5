"""Data classes that are cheap to declare behave like the standard ones."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from quire.system import records


def classes(dataclass: Callable[..., Any]) -> dict[str, Any]:
    @dataclass(frozen=True, slots=True)
    class Frozen:
        a: int
        b: str = "x"
        c: list[int] = field(default_factory=list, hash=False)
        d: float = field(default=0.5, repr=False, compare=False)

    @dataclass(slots=True)
    class Open:
        a: int
        twice: int = field(init=False)
        b: dict[str, int] = field(default_factory=dict)

        def __post_init__(self) -> None:
            self.twice = 2 * self.a

    @dataclass(slots=True)
    class Derived(Open):
        a: int = 7
        last: tuple[int, ...] = ()

        def __repr__(self) -> str:
            return f"<{self.a}>"

    @dataclass(slots=True, kw_only=True)
    class Named(Open):
        flag: bool = False
        other: int

    @dataclass(frozen=True, eq=False)
    class Single:
        a: Any = None

    @dataclass(frozen=True)
    class Empty:
        """It has no fields."""

    found = (Frozen, Open, Derived, Named, Single, Empty)
    return {kind.__name__: kind for kind in found}


OURS, STANDARD = classes(records.dataclass), classes(dataclasses.dataclass)
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Frozen", (1,), {}),
    ("Frozen", (1, "y"), {"c": [2], "d": 1.5}),
    ("Frozen", (), {}),
    ("Frozen", (1, 2, 3, 4, 5), {}),
    ("Frozen", (1,), {"e": 2}),
    ("Open", (3,), {"b": {"k": 1}}),
    ("Open", (3,), {"twice": 1}),
    ("Derived", (), {}),
    ("Derived", (1, {}, (2,)), {}),
    ("Named", (1,), {"other": 4}),
    ("Named", (1, {}, True, 4), {}),
    ("Named", (1,), {}),
    ("Single", (), {}),
    ("Empty", (), {}),
]


def outcome(make: Callable[[], Any]) -> Any:
    """Return the result, or the class of its error."""
    try:
        return make()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize(("name", "given", "named"), CALLS)
def test_objects_are_those_of_the_standard_library(
    name: str, given: tuple[Any, ...], named: dict[str, Any]
) -> None:
    def seen(kind: Any) -> list[Any]:
        made = outcome(lambda: kind(*given, **named))
        if isinstance(made, type):
            return [made]
        again, others = kind(*given, **named), dataclasses.replace(made, a=9) if given else made
        texts = [repr(each).replace("classes.<locals>.", "") for each in (made, others)]
        return [
            [text.split(" object at ")[0] for text in texts],
            dataclasses.asdict(made),
            dataclasses.asdict(others),
            dataclasses.asdict(copy.copy(made)),
            made == again,
            made == others,
            made == object(),
            outcome(lambda: hash(made) == hash(again)),
            outcome(lambda: setattr(made, "a", 2)),
            outcome(lambda: delattr(made, "a")),
            kind.__match_args__,
            hasattr(made, "__dict__"),
        ]

    assert seen(OURS[name]) == seen(STANDARD[name])


@records.dataclass(frozen=True, slots=True)
class Sent:
    a: int
    b: tuple[int, ...] = ()


def test_a_frozen_object_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Sent(1, (2,)))) == Sent(1, (2,))


def test_hashes_agree_with_equality() -> None:
    assert {Sent(1), Sent(1), Sent(2)} == {Sent(2), Sent(1)}
    assert Sent(1) != Sent(1, (2,))


def test_nothing_is_compiled_before_the_first_object() -> None:
    @records.dataclass(slots=True)
    class Unused:
        a: int

    declared = Unused.__init__
    Unused(1)
    assert Unused.__init__ is not declared


def test_a_wrapped_init_stays() -> None:
    @records.dataclass(slots=True)
    class Wrapped:
        a: int

    plain, calls = Wrapped.__init__, []

    def wrapper(self: Any, a: int) -> None:
        calls.append(a)
        plain(self, a)

    Wrapped.__init__ = wrapper  # type: ignore[method-assign]
    assert [Wrapped(1).a, Wrapped(2).a] == calls == [1, 2]
