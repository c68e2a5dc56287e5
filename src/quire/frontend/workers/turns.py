"""Slots for which clients take turns."""

from __future__ import annotations

import asyncio
from collections import Counter, deque


class Turns:
    """A number of slots. Each client has a queue, and clients take turns.

    So a client that asks for many slots delays another by one.

    Args:
        size: slots.
        spare: slots that only clients without one get, so that no client fills all of them.
    """

    def __init__(self, size: int, spare: int = 0) -> None:
        self._free = size
        self._spare = spare
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def take(self, client: str) -> None:
        """Take a slot when it is the client's turn."""
        if self._may_take(client):
            self._hold(client)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give(client)
            raise

    def give(self, client: str) -> None:
        """Free a slot of a client, whose turn is then behind all others'.

        Two clients may begin: one takes the slot, and its former owner may take a spare one.
        """
        self._free += 1
        self._held[client] -= 1
        self._held += Counter()  # which removes clients that have none
        if (mine := self._waiting.pop(client, None)) is not None:
            self._waiting[client] = mine
        for other, turns in list(self._waiting.items()):
            while turns and turns[0].done():
                turns.popleft()
            if not turns:
                del self._waiting[other]
            elif self._may_take(other):
                self._hold(other)
                turns.popleft().set_result(None)

    def fail(self, error: Exception) -> None:
        for turns in self._waiting.values():
            for turn in turns:
                if not turn.done():
                    turn.set_exception(error)
        self._waiting.clear()

    def _may_take(self, client: str) -> bool:
        return self._free > (self._spare if self._held[client] else 0)

    def _hold(self, client: str) -> None:
        self._free -= 1
        self._held[client] += 1
