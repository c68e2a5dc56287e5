"""The base of all types that clients send: limits of lists, and fields without effect.

A type lists fields without effect in its `rules`. A field that never changes the answer is ignored.
One that would change it is refused, unless its value asks for what happens anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta

MAX_SEQUENCES = 2048
"""Most completions of a request: prompts times n."""
MAX_MESSAGES = 2048
"""Most messages or items of a conversation, and most parts of a message."""
MAX_TOOLS = 1024
"""Most tools of a request, and most calls of a message."""

T = TypeVar("T")
Messages = Annotated[list[T], Meta(max_length=MAX_MESSAGES)]
Tools = Annotated[list[T], Meta(max_length=MAX_TOOLS)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
"""A tool's name."""
EMPTY: tuple[Any, ...] = ("", [], {})
"""Values that ask for nothing in any field."""


class Rule(msgspec.Struct, frozen=True):
    """The treatment of a field without effect; null is always accepted.

    Attributes:
        reason: why it has no effect, or what to send instead; a sentence.
        neutral: values that are ignored, in addition to `EMPTY`; None ignores all.
        strict: values that `--strict-fields` accepts, too; None accepts all.
        twin: the field here with the same meaning; a value equal to its value is ignored.
    """

    reason: str
    neutral: tuple[Any, ...] | None
    strict: tuple[Any, ...] | None = ()
    twin: str | None = None

    def ignores(self, value: Any) -> bool:
        return self.neutral is None or _is_one_of(value, (*EMPTY, *self.neutral))

    def is_plain(self, value: Any) -> bool:
        """Return whether even `--strict-fields` accepts the value."""
        return value is None or self.strict is None or _is_one_of(value, self.strict)


Rules = Mapping[str, Rule]


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """Base of all types that a client sends."""

    rules: ClassVar[Rules] = {}
    """Fields without effect, in addition to those of the bases."""


def ignored(reason: str, *, strict: tuple[Any, ...] | None = ()) -> Rule:
    """Return a rule for a field that never changes the answer."""
    return Rule(reason, None, strict)


def refused(reason: str, *neutral: Any) -> Rule:
    """Return a rule for a field that would change the answer, unless its value is `neutral` or
    empty."""
    return Rule(reason, neutral)


def instead(field: str, *neutral: Any) -> Rule:
    """Return the rule of a field that has another name here."""
    return Rule(f"Send {field} instead.", neutral, twin=field)


def each(names: str, rule: Rule) -> Rules:
    """Return the same rule for several fields, whose names are separated by spaces."""
    return dict.fromkeys(names.split(), rule)


def rules_of(kind: type) -> dict[str, Rule]:
    """Return the rules of a request's type and of its bases."""
    found: dict[str, Rule] = {}
    for base in reversed(kind.__mro__):
        found.update(vars(base).get("rules", {}))
    return found


def _is_one_of(value: Any, known: tuple[Any, ...]) -> bool:
    """Return whether a value is in `known`, without Python's `False == 0`."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in known)
