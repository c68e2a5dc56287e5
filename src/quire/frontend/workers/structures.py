"""What is known of the structures that requests ask for: good ones, and those that ended processes.

A structure is llguidance's, native code's, to compile and to follow. `GrammarPool` tries the first
in processes of its own. The second is the engine core's: where it is lost of it, the structure
whose turn it was is known (see `system.native_marks`), and not taken again.
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
from quire.frontend.workers.grammar_pool import DeadlyError, GrammarPool
from quire.frontend.workers.grammar_worker import error_of
from quire.frontend.workers.known_structures import KnownStructures
from quire.text.grammar import grammar_key, structure_key
from quire.text.grammar_writer import refused
from quire.text.tokenizer import Tokenizer
from quire.text.vocabulary import special_tokens

logger = logging.getLogger(__name__)

MOST_DEATHS = 2
HOLD_SECONDS = 600.0
"""So many cores lost of structures in so long, and no structure is taken that is not known to be
good: whoever varies one that kills cannot end one core after the other."""
_ENDED_CORE = "following it has ended the engine core"
_Task = asyncio.Task[WrittenStructure | None]


class Structures:
    """Checks each structure once.

    Args:
        pool: where new ones are checked.
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
        """Return the structure as the engine core compiles it.

        Equal ones that come together are checked once, until the last caller is cancelled.

        Raises:
            InvalidRequestError: an output cannot be held to this.
            StructureUnavailableError: that cannot be told now.
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
                task.cancel()  # which changes nothing if it has ended

    @property
    def num_abandoned(self) -> int:
        """Structures that are checked although nobody waits for them."""
        return self._pool.num_abandoned

    def refusal(self, wanted: StructuredOutputsParams) -> QuireError | None:
        """Why a structure is not to be tried again; None where it may be."""
        return self._known.refusal(wanted)

    def blame(self, keys: Collection[bytes]) -> None:
        """The core is lost, in native code that followed, or compiled, one of these structures.

        Args:
            keys: of `text.grammar.structure_key`.
        """
        for key in keys:
            logger.error("native code was at the structure %s; it is not taken again", key.hex())
            self._known.learn_deadly(key, _ENDED_CORE)
        if keys:
            self._deaths.append(time.monotonic())

    def after_death(self, wanted: StructuredOutputsParams) -> QuireError | None:
        """Why a request that was under way is not to be tried again; None where it may be."""
        return self.refusal(wanted) or (_held_error(wanted) if self._held else None)

    @property
    def _held(self) -> bool:
        """Whether new structures are not taken now."""
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
            task.exception()  # nobody may be left to hear it

    def _forget(self, name: tuple[bytes, str | None], task: _Task) -> None:
        if self._running.get(name) is task:
            del self._running[name]


def _held_error(wanted: StructuredOutputsParams) -> StructureUnavailableError:
    return StructureUnavailableError(
        "The engine core was lost of structures that requests asked for; no new ones are taken "
        "for some minutes.",
        param=wanted.field or "structured_outputs",
    )
