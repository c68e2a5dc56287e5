"""Long work of the event loop in turns, between which other requests run.

A thread would be no better: it holds Python's lock for 5 ms at a time, and the loop would wait for
the lock after each write to a socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, TypeVar

from quire.text.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from quire.text.tokenizers.tokenizer import Tokenizer

LOGPROBS_PER_TURN = 320
"""Log-probabilities that are built in 2 ms: those of 16 tokens, with 20 each."""
TOKENS_PER_TURN = 4096
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
    try:
        while True:
            next(work)
            await asyncio.sleep(0)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def at_once(work: Turns[T]) -> T:
    """Return the result of `work`, which is known to be short."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def decoded(tokenizer: Tokenizer, token_ids: list[int], *, skip_special_tokens: bool) -> Turns[str]:
    """Return what `tokenizer.decode` returns."""
    detokenizer = IncrementalDetokenizer(tokenizer, [], skip_special_tokens)
    for start in range(0, len(token_ids), TOKENS_PER_TURN):
        if start:
            yield
        detokenizer.append(token_ids[start : start + TOKENS_PER_TURN])
    detokenizer.flush()
    return detokenizer.text


def spelled(tokenizer: Tokenizer, token_ids: list[int]) -> Turns[list[str | None]]:
    """Return each token as the vocabulary spells it."""
    found: list[str | None] = []
    for start in range(0, len(token_ids), TOKENS_PER_TURN):
        if start:
            yield
        found += map(tokenizer.id_to_token, token_ids[start : start + TOKENS_PER_TURN])
    return found
