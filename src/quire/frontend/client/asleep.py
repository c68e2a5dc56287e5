"""A sleeping engine: its core has ended, which freed weights and KV cache."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quire.core.errors import EngineSleepingError, InvalidRequestError

WEIGHTS, KV_CACHE = "weights", "kv_cache"
PARTS = (WEIGHTS, KV_CACHE)
"""vLLM's tags."""
LEVELS = (1, 2)


class Asleep:
    """The sleeping parts of an engine; none while it is awake.

    vLLM's level 1 moves the weights to host memory, level 2 drops them. Here both drop them, and
    `wake_up` reads the model's files again.

    Attributes:
        lock: held by an asynchronous engine while it falls asleep or wakes up.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._parts: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._parts)

    def begin(self, level: int) -> None:
        """Mark all parts as sleeping.

        Raises:
            InvalidRequestError: there is no such level.
        """
        if level not in LEVELS:
            raise InvalidRequestError(
                f"level is {level!r}; it must be 1 or 2, which mean the same.", param="level"
            )
        self._parts = {*PARTS}

    def end(self, tags: Sequence[str] | None) -> bool:
        """Mark parts as awake, all if None; return whether to load the core now.

        The core is loaded once all parts are awake: it loads weights and KV cache together.

        Raises:
            InvalidRequestError: a tag names no part.
        """
        for tag in tags or ():
            if tag not in PARTS:
                raise InvalidRequestError(
                    f"{tag!r} is no part of an engine; tags are {' and '.join(PARTS)}.",
                    param="tags",
                )
        was_asleep = bool(self._parts)
        self._parts -= {*(PARTS if tags is None else tags)}
        return was_asleep and not self._parts


def sleeping_error(call: str) -> EngineSleepingError:
    """Return the error of a request to a sleeping engine; `call` is what wakes it."""
    return EngineSleepingError(
        "The engine sleeps: its weights and KV cache are freed.", fix=f"Call {call} first."
    )
