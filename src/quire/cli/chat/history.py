"""Decide which turns of a long chat fit into the context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from quire.core.errors import ContextLengthError

T = TypeVar("T")
MAX_RESERVE = 256
"""Most tokens reserved for the answer."""


def room_for_prompt(context: int, max_tokens: int | None) -> int:
    """Return how many tokens a prompt may have, so that room for an answer remains.

    Args:
        context: tokens of prompt and answer together.
        max_tokens: tokens of the answer; None means all that fit.
    """
    wanted = MAX_RESERVE if max_tokens is None else max_tokens
    return max(1, context - min(wanted, MAX_RESERVE, context // 4))


def first_that_fits(
    turns: Sequence[T], is_question: Callable[[T], bool], fits: Callable[[Sequence[T]], bool]
) -> int:
    """Return how many of the oldest turns to drop: as few as let the others fit.

    The remaining turns begin with a question. The last question stays even if it does not fit.
    """
    starts = [index for index, turn in enumerate(turns) if is_question(turn)]
    if not starts or _holds(fits, turns):
        return 0
    first, last = 0, len(starts) - 1
    while first < last:
        middle = (first + last) // 2
        if _holds(fits, turns[starts[middle] :]):
            last = middle
        else:
            first = middle + 1
    return starts[first]


def _holds(fits: Callable[[Sequence[T]], bool], turns: Sequence[T]) -> bool:
    try:
        return fits(turns)
    except ContextLengthError:
        return False
