"""An engine that sleeps: its core is gone, with weights and KV cache, and can be loaded again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quire.core.errors import EngineSleepingError, InvalidRequestError

WEIGHTS, KV_CACHE = "weights", "kv_cache"
PARTS = (WEIGHTS, KV_CACHE)
"""vLLM's tags of what sleeps."""
LEVELS = (1, 2)


class Asleep:
    """Which parts of an engine sleep; none while it is awake.

    vLLM's levels differ in where the weights are kept meanwhile: 1 in host memory, 2 nowhere. Here
    both free them, and they are read from the model's files again.

    Attributes:
        lock: held by an asynchronous engine while it changes from one to the other.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._parts: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._parts)

    def begin(self, level: int) -> None:
        """Have all parts sleep.

        Raises:
            InvalidRequestError: there is no such level.
        """
        if level not in LEVELS:
            raise InvalidRequestError(
                f"level is {level!r}; it must be 1 or 2, which mean the same.", param="level"
            )
        self._parts = {*PARTS}

    def end(self, tags: Sequence[str] | None) -> bool:
        """Wake those parts, all if None; whether the core is to be loaded now.

        It is once no part sleeps any more: weights and KV cache are loaded together.

        Raises:
            InvalidRequestError: a tag is no part.
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
    """The error of a request that comes meanwhile; `call` is what wakes the engine."""
    return EngineSleepingError(
        "The engine sleeps: its weights and KV cache are freed.", fix=f"Call {call} first."
    )


def check_idle(num_unfinished: int) -> None:
    """Raise `InvalidRequestError` where requests are under way, which sleep would end."""
    if num_unfinished:
        raise InvalidRequestError(
            f"{num_unfinished} requests are in progress, and sleep would end them.",
            fix="Let them finish, or abort them.",
        )
