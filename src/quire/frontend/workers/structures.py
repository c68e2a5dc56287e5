"""Checks the structures of requests, and refuses those that have ended a process.

llguidance, native code, compiles and follows structures. `GrammarPool` tries the compilation in its
own processes. The engine core follows them: if that ends the core, the structure that it worked on
is known (see `system.native_marks`), and refused from then on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Collection
from functools import partial

from quire.core.errors import InvalidRequestError, QuireError, StructureUnavailableError
from quire.core.structured_outputs import StructuredOutputsParams, WrittenStructure
from quire.frontend.workers.grammar_messages import Checked
from quire.frontend.workers.grammar_pool import DeadlyStructureError, GrammarPool
from quire.text.structures import CHECKED_KEPT, grammar_key, refused, structure_key

logger = logging.getLogger(__name__)

MOST_DEATHS = 2
HOLD_SECONDS = 600.0
"""If structures end `MOST_DEATHS` cores within this time, only known valid structures are accepted.
So a client that varies a deadly structure cannot end one core after the other."""
KEPT_BYTES = 64 * 2**20
"""Most bytes of valid structures' grammars."""
DEADLY_KEPT = 1024
"""Most remembered structures that ended a process; they are refused at once."""
_ENDED_CORE = "following it has ended the engine core"
_Task = asyncio.Task[WrittenStructure | None]


class KnownStructures:
    """The latest structures of both kinds."""

    def __init__(self) -> None:
        self._good: OrderedDict[bytes, Checked] = OrderedDict()
        self._good_bytes = 0
        self._deadly: OrderedDict[bytes, str] = OrderedDict()

    def good(self, wanted: StructuredOutputsParams) -> Checked | None:
        """Return the result of checking a structure, if it is known to be valid."""
        key = grammar_key(wanted)
        if (found := self._good.get(key)) is not None:
            self._good.move_to_end(key)
        return found

    def refusal(self, wanted: StructuredOutputsParams) -> InvalidRequestError | None:
        """Return why a structure must not be tried again; None if it may."""
        if not self._deadly:
            return None
        reason = self._deadly.get(structure_key(wanted))
        return None if reason is None else refused(reason, wanted)

    def learn_good(self, wanted: StructuredOutputsParams, checked: Checked) -> None:
        key = grammar_key(wanted)
        if (before := self._good.pop(key, None)) is not None:
            self._good_bytes -= before.num_bytes
        self._good[key] = checked
        self._good_bytes += checked.num_bytes
        while len(self._good) > CHECKED_KEPT or self._good_bytes > KEPT_BYTES:
            _, oldest = self._good.popitem(last=False)
            self._good_bytes -= oldest.num_bytes

    def learn_deadly(self, key: bytes, reason: str) -> None:
        """Remember a structure that ended a process, by its `text.structures.structure_key`."""
        self._deadly[key] = reason
        self._deadly.move_to_end(key)
        if len(self._deadly) > DEADLY_KEPT:
            self._deadly.popitem(last=False)


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
        except DeadlyStructureError as error:
            self._known.learn_deadly(structure_key(wanted), str(error))
            raise refused(str(error), wanted) from None
        if (fault := checked.fault) is not None:
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
