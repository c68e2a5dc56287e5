"""Holds the last output of a prompt's request until other engines can find the prompt's blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from quire.core.kv_sharing import TransferConfig
from quire.core.messages import BlocksLent, BlocksReturned, CoreOutput
from quire.core.request import Request
from quire.kv.hashing import BlockHasher
from quire.kv.loans import Loans, copies_loan
from quire.kv.lower_tiers import LowerTier
from quire.system.records import dataclass

HOLD_SECONDS = 5.0
"""How long an output waits for its blocks. Then it names those that are there."""
POLL_SECONDS = 5e-4


@dataclass(slots=True)
class _Held:
    output: CoreOutput
    blocks: list[bytes]
    until: float


class HandOff:
    """Turns the blocks of finished prompts into `kv_transfer_params` for a consumer.

    A block can be found when its file is complete. Files are written in the order of the blocks,
    behind the step that reports the output.

    Args:
        loans: set if a consumer reads this engine's own memory. Then nothing has to wait.
    """

    def __init__(
        self,
        config: TransferConfig | None,
        tiers: Sequence[LowerTier],
        clock: Callable[[], float],
        loans: Loans | None = None,
    ) -> None:
        self._config = config
        self._tier = tiers[0] if tiers and config else None
        self._clock = clock
        self._loans = loans
        self._held: list[_Held] = []

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, outputs: list[CoreOutput]) -> list[CoreOutput]:
        """Return the outputs that need not wait, and those that need not wait any longer."""
        if not self._held and all(output.kv_blocks is None for output in outputs):
            return outputs
        until = self._clock() + HOLD_SECONDS
        self._held += [_Held(o, o.kv_blocks, until) for o in outputs if o.kv_blocks is not None]
        return [output for output in outputs if output.kv_blocks is None] + self._released()

    def wait(self) -> None:
        """Wait a moment for files, or for lent blocks, if there is nothing else to do."""
        if self._held or (self._loans is not None and self._loans.num_lent):
            time.sleep(POLL_SECONDS)

    def begin(self, request: Request, hasher: BlockHasher) -> None:
        """Borrow the blocks that come with a request."""
        transfer = request.options.kv_transfer
        if self._loans is not None and transfer is not None and transfer.lent is not None:
            self._loans.borrow(request.request_id, transfer.lent, hasher.extend(request))

    def note(self, message: BlocksLent | BlocksReturned) -> None:
        if self._loans is None:
            return
        if isinstance(message, BlocksLent):
            self._loans.restore(message.blocks)
        else:
            self._loans.take_back(message.blocks)

    def settle(self, requests: Mapping[str, Request], begins: Container[str]) -> list[int]:
        """Return the borrowed blocks that none of the requests reads, or has yet to copy.

        Args:
            begins: names of further requests, which the scheduler has not got yet.
        """

        def needs(name: str) -> bool:
            request = requests.get(name)
            if request is None:
                return name in begins
            # If one of its own tokens has landed, the step that copied has, too.
            return not copies_loan(request) or not request.num_own_tokens

        return [] if self._loans is None else self._loans.settle(needs)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget the outputs of these requests."""
        gone = set(request_ids)
        self._held = [held for held in self._held if held.output.request_id not in gone]

    def _released(self) -> list[CoreOutput]:
        now = self._clock()
        ready = [h for h in self._held if now >= h.until or self._find(h.blocks[-1:])]
        self._held = [held for held in self._held if held not in ready]
        for held in ready:
            held.output.kv_blocks = None
            held.output.kv_transfer_params = self._params(held)
        return [held.output for held in ready]

    def _params(self, held: _Held) -> dict[str, Any]:
        """Return what a consumer's request needs; vLLM's field names."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self._config.engine_id if self._config else None,
            "remote_request_id": held.output.request_id,
            "remote_block_ids": [block.hex() for block in held.blocks if self._find([block])],
        }

    def _find(self, blocks: list[bytes]) -> bool:
        """Return whether all of these blocks can be found."""
        return all(self._tier is not None and self._tier.find(block) for block in blocks)
