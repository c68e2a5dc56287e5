"""Long work of the event loop in turns, between which other requests run.

A thread would be no better: it holds Python's lock for 5 ms at a time, and the loop would wait for
the lock after each write to a socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

LOGPROBS_PER_TURN = 320
"""Log-probabilities that are built in 2 ms: those of 16 tokens, with 20 each."""
T = TypeVar("T")
Turns = Generator[None, None, T]
"""Work that yields every 1 to 2 ms, and returns a `T`."""


class Pace:
    """Counts what is built, and says when a turn is over."""

    def __init__(self) -> None:
        self._left = LOGPROBS_PER_TURN

    def is_over(self, count: int) -> bool:
        """Return whether `count` more log-probabilities end the turn."""
        self._left -= count
        if self._left > 0:
            return False
        self._left = LOGPROBS_PER_TURN
        return True


async def in_turns(work: Turns[T]) -> T:
    """Return the result of `work`; other tasks run whenever it yields."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await asyncio.sleep(0)


def at_once(work: Turns[T]) -> T:
    """Return the result of `work`, which is known to be short."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
