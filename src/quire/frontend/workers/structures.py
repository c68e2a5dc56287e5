"""Checks the structures of requests, and refuses those that have ended a process.

llguidance, native code, compiles and follows structures. `GrammarPool` tries the compilation in its
own processes. The engine core follows them: if that ends the core, the structure that it worked on
is known (see `system.native_marks`), and refused from then on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Collection
from functools import partial

from quire.core.errors import QuireError, StructureUnavailableError
from quire.core.structured_outputs import StructuredOutputsParams, WrittenStructure
from quire.frontend.workers.grammar_messages import error_of
from quire.frontend.workers.grammar_pool import DeadlyError, GrammarPool
from quire.frontend.workers.known_structures import KnownStructures
from quire.text.structures import grammar_key, refused, structure_key
from quire.text.tokenizers.tokenizer import Tokenizer
from quire.text.tokenizers.vocabulary import special_tokens

logger = logging.getLogger(__name__)

MOST_DEATHS = 2
HOLD_SECONDS = 600.0
"""If structures end `MOST_DEATHS` cores within this time, only known valid structures are accepted.
So a client that varies a deadly structure cannot end one core after the other."""
_ENDED_CORE = "following it has ended the engine core"
_Task = asyncio.Task[WrittenStructure | None]


class Structures:
    """Checks each structure once.

    Args:
        pool: checks new structures.
    """

    def __init__(self, pool: GrammarPool) -> None:
        self._pool = pool
        self._known = KnownStructures()
        self._running: dict[tuple[bytes, str | None], _Task] = {}
        self._num_waiting: Counter[_Task] = Counter()
        self._deaths: deque[float] = deque(maxlen=MOST_DEATHS)

    @classmethod
    def of_model(cls, tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]) -> Structures:
        return cls(GrammarPool(special_tokens(tokenizer, eos_token_ids)))

    async def check(self, wanted: StructuredOutputsParams) -> WrittenStructure | None:
        """Check a structure; return it as the engine core compiles it.

        Concurrent calls for equal structures share one check, until the last caller is cancelled.

        Raises:
            InvalidRequestError: the structure is invalid.
            StructureUnavailableError: it cannot be checked now.
        """
        if (refusal := self.refusal(wanted)) is not None:
            raise refusal
        if (known := self._known.good(wanted)) is not None:
            return known.written
        if self._held:
            raise _held_error(wanted)
        name = grammar_key(wanted), wanted.field
        task = self._running.get(name)
        if task is None:
            task = self._running[name] = asyncio.create_task(self._check(wanted))
            task.add_done_callback(partial(self._checked, name))
        self._num_waiting[task] += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._num_waiting[task] -= 1
            if not self._num_waiting[task]:
                del self._num_waiting[task]
                self._forget(name, task)
                task.cancel()  # no effect if it has ended

    @property
    def num_abandoned(self) -> int:
        """Return how many structures are checked for cancelled callers."""
        return self._pool.num_abandoned

    def refusal(self, wanted: StructuredOutputsParams) -> QuireError | None:
        """Return why a structure must not be tried again; None if it may."""
        return self._known.refusal(wanted)

    def blame(self, keys: Collection[bytes]) -> None:
        """Refuse structures from now on, because native code ended the core while it used them.

        Args:
            keys: their `text.structures.structure_key`.
        """
        for key in keys:
            logger.error(
                "the core was lost in the structure %s; it is refused from now on", key.hex()
            )
            self._known.learn_deadly(key, _ENDED_CORE)
        if keys:
            self._deaths.append(time.monotonic())

    def after_death(self, wanted: StructuredOutputsParams) -> QuireError | None:
        """Return why a running request must not be retried with a new core; None if it may."""
        return self.refusal(wanted) or (_held_error(wanted) if self._held else None)

    @property
    def _held(self) -> bool:
        """Return whether new structures are refused now."""
        full = len(self._deaths) == MOST_DEATHS
        return full and time.monotonic() - self._deaths[0] < HOLD_SECONDS

    def shutdown(self) -> None:
        self._pool.shutdown()

    async def _check(self, wanted: StructuredOutputsParams) -> WrittenStructure | None:
        try:
            checked = await self._pool.check(wanted)
        except DeadlyError as error:
            self._known.learn_deadly(structure_key(wanted), str(error))
            raise refused(str(error), wanted) from None
        if (fault := error_of(checked)) is not None:
            raise fault
        self._known.learn_good(wanted, checked)
        return checked.written

    def _checked(self, name: tuple[bytes, str | None], task: _Task) -> None:
        self._forget(name, task)
        if not task.cancelled():
            task.exception()  # retrieve it: all callers may be cancelled

    def _forget(self, name: tuple[bytes, str | None], task: _Task) -> None:
        if self._running.get(name) is task:
            del self._running[name]


def _held_error(wanted: StructuredOutputsParams) -> StructureUnavailableError:
    return StructureUnavailableError(
        "Structured outputs have ended the engine core twice; new structures are refused for "
        "some minutes.",
        param=wanted.field or "structured_outputs",
    )
