"""What becomes of requests whose promised KV blocks are not there."""

from __future__ import annotations

from quire.core.errors import InvalidRequestError
from quire.core.messages import CoreOutput
from quire.core.request import FinishReason, Request
from quire.kv.manager import KVCacheManager


class Promises:
    """Applies `kv_load_failure_policy`.

    Args:
        fails: end such requests; else their blocks are computed.
    """

    def __init__(self, kv: KVCacheManager, *, fails: bool) -> None:
        self._kv = kv
        self._fails = fails

    def check(self, request: Request) -> None:
        """Take note of promised blocks; raise `InvalidRequestError` if they are missing."""
        transfer = request.options.kv_transfer
        if transfer is not None:
            for tier in self._kv.tiers:
                tier.promise(transfer.promised)
        if not self._holds(request):
            return
        wanted = min(request.num_promised, (request.num_tokens - 1) // self._kv.block_size)
        found = self._kv.num_found(request)
        if found < wanted:
            raise InvalidRequestError(
                f"{wanted} KV blocks of the prompt were promised, and {found} are there.",
                fix="Send the prompt to the producer again, "
                "or set kv_load_failure_policy to recompute.",
                param="kv_transfer_params",
            )

    def broken(self, request: Request) -> CoreOutput | None:
        """Return the end of a request whose loads have failed; None if it goes on."""
        if not self._holds(request):
            return None
        request.finish_reason = FinishReason.ERROR
        why = "KV blocks of the prompt could not be loaded"
        return CoreOutput(request.request_id, [], FinishReason.ERROR, stop_reason=why)

    def _holds(self, request: Request) -> bool:
        return self._fails and request.num_promised > 0
