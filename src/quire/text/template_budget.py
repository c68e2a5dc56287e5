"""The budget of a chat template: steps, characters, seconds.

Jinja's sandbox protects Python's internals, but does not stop a template from building a string
that fills the memory, or from looping without end. So every operation whose result can be larger
than its operands is charged before it is done.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import field
from functools import wraps
from typing import Any

from jinja2.exceptions import SecurityError

from quire.system.records import dataclass

MAX_CHARS = 8 << 20
"""Maximum characters of one string, or items of one list."""
MAX_TOTAL_CHARS = 256 << 20
"""Maximum characters of all strings made in one rendering."""
MAX_STEPS = 1_000_000
"""Maximum turns of loops, and calls of macros, filters and functions."""
MAX_SECONDS = 5.0
_MAX_INTEGER_BITS = 4096
_MAX_WIDTH = 1024


@dataclass(slots=True)
class Budget:
    """What one rendering has used so far."""

    steps: int = 0
    chars: int = 0
    deadline: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)


CURRENT: ContextVar[Budget | None] = ContextVar("template_budget", default=None)
"""The budget of the rendering that this thread is in."""


def step() -> str:
    """Charge one turn of a loop; called inside every loop and macro."""
    budget = CURRENT.get()
    if budget is not None:
        budget.steps += 1
        if budget.steps > MAX_STEPS:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")
        if budget.steps % 64 == 0 and time.monotonic() > budget.deadline:
            raise SecurityError(f"it takes longer than {MAX_SECONDS:.0f} s")
    return ""


def charge(size: int) -> None:
    """Charge a step and a value of `size` characters or items before it is made."""
    step()
    if size > MAX_CHARS:
        raise SecurityError(f"it makes a value of more than {MAX_CHARS} characters")
    budget = CURRENT.get()
    if budget is not None:
        budget.chars += size
        if budget.chars > MAX_TOTAL_CHARS:
            raise SecurityError(f"it makes more than {MAX_TOTAL_CHARS} characters in all")


def charge_result(value: Any) -> Any:
    """Charge a value after it was made by an operation that cannot enlarge its input much."""
    charge(len(value) if isinstance(value, (str, bytes, list, tuple, dict)) else 0)
    return value


def charge_spelling(value: Any) -> Any:
    """Charge `str(value)` before it is made; return `value`.

    A list that contains another list many times is small, but its text is not.
    """
    if isinstance(value, str):
        return value
    size, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += item.keys()
            waiting += item.values()
        elif isinstance(item, (list, tuple, set, frozenset)):
            waiting += item
        size += (len(item) if isinstance(item, (str, bytes)) else 8) + 2
        if size > MAX_CHARS or len(waiting) > MAX_CHARS:
            raise SecurityError(f"it writes out a value of more than {MAX_CHARS} characters")
    charge(size)
    return value


def bounded_concat(parts: Iterable[str]) -> str:
    """Return `"".join`, charged."""
    parts = list(parts)
    charge(sum(map(len, parts)))
    return "".join(parts)


def bounded_join(*values: Any) -> str:
    """Return the result of Jinja's `~`, charged."""
    return bounded_concat([str(charge_spelling(value)) for value in values])


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Charge `left operator right` before it is evaluated."""
    if operator == "%" and isinstance(left, (str, bytes)):
        check_format(left)
        charge(len(left))
        charge_spelling(right)
    elif operator == "+" and _is_sized(left) and _is_sized(right):
        charge(len(left) + len(right))
    elif operator == "*":
        _check_product(left, right)
    elif operator == "**" and isinstance(left, int):
        if not isinstance(right, (int, float)) or abs(right) > _MAX_INTEGER_BITS:
            raise SecurityError("it computes a huge power")
        if left.bit_length() * abs(right) > _MAX_INTEGER_BITS:
            raise SecurityError("it computes a huge power")


def _check_product(left: Any, right: Any) -> None:
    if _is_sized(left) and isinstance(right, int):
        charge(len(left) * max(right, 0))
    elif _is_sized(right) and isinstance(left, int):
        charge(len(right) * max(left, 0))
    elif (
        isinstance(left, int)
        and isinstance(right, int)
        and left.bit_length() + right.bit_length() > _MAX_INTEGER_BITS
    ):
        raise SecurityError("it computes a huge number")


def _is_sized(value: Any) -> bool:
    return isinstance(value, (str, bytes, list, tuple))


def check_format(template: str | bytes) -> None:
    """Refuse formats that pad to a large or computed width."""
    text = template.decode("latin-1") if isinstance(template, bytes) else template
    if any(int(digits) > _MAX_WIDTH for digits in re.findall(r"\d{4,}", text)) or "*" in text:
        raise SecurityError("it formats with a huge or computed width")


def check_width(width: Any) -> None:
    """Refuse padding to a large width."""
    if isinstance(width, int) and width > _MAX_WIDTH:
        raise SecurityError(f"it pads to {width} characters")


def check_join(separator: Any, items: Any) -> list[Any]:
    """Charge `separator.join(items)`; return the items, which may have been an iterator."""
    listed = list(items)
    charge(len(str(separator)) * max(len(listed) - 1, 0))
    charge_spelling(listed)
    return listed


def check_replace(text: Any, old: Any, new: Any) -> None:
    """Charge `text.replace(old, new)`."""
    text, old, new = (str(charge_spelling(value)) for value in (text, old, new))
    charge(len(text) + max(len(new) - len(old), 0) * text.count(old))


def charged(function: Callable[..., Any], *, spells: bool) -> Callable[..., Any]:
    """Return `function` with its result charged, and its first argument too if it `spells` that
    out.

    Keeps the marks that Jinja puts on filters.
    """

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if spells:
            for value in args[:2]:  # the first may be Jinja's own context
                charge_spelling(value)
        return charge_result(function(*args, **kwargs))

    return wrapper
