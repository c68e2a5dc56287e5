"""Prompts that some replicas compute and others answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.core.messages import AddRequest, StepOutputs
from quire.core.options import LentBlocks
from quire.routing.halves import Ended, end_half, half_name, half_of, is_half
from quire.routing.ledger import Ledger

if TYPE_CHECKING:
    from quire.frontend.output.request_state import RequestState


class Halves:
    """Requests whose prompts are being computed by a replica for prompts.

    The half of a request is a request of its own, for the first token. It ends when the prompt's
    blocks can be found by other replicas.

    Attributes:
        prompts, answers: masks of the replicas for each.
        loans: blocks in shared memory, if there is some.
        alone: see `most_alone`.
    """

    def __init__(
        self, num_prefill: int, num_replicas: int, loans: Ledger | None = None, alone: int = 0
    ) -> None:
        self.prompts = (1 << num_prefill) - 1
        self.answers = (1 << num_replicas) - 1 - self.prompts
        self.loans = loans
        self.alone = alone
        self._waiting: dict[str, RequestState] = {}

    def divides(self, first: AddRequest) -> bool:
        """Return whether a request's prompt may be computed apart, given its first sequence."""
        options, params = first.inputs.options, first.sampling_params
        computes_all = options.skip_reading_prefix_cache or params.prompt_logprobs is not None
        return options.kv_transfer is None and not computes_all

    def begin(self, state: RequestState) -> AddRequest:
        """Return the half of a request for a replica for prompts."""
        half = half_of(state.request.children[0])
        self._waiting[half.request_id] = state
        return half

    def take(self, step: StepOutputs) -> list[tuple[RequestState, Ended]]:
        """Make the outputs of halves those of their requests; return the requests to go on with."""
        found: list[tuple[RequestState, Ended]] = []
        for output in [output for output in step.outputs if is_half(output.request_id)]:
            if (state := self._waiting.pop(output.request_id, None)) is None:  # it was aborted
                self._send_back(output.lent)
                continue
            ended = end_half(step, output, state.request.children)
            if ended.children:
                found.append((state, ended))
            else:
                self._send_back(ended.lent)
        return found

    def go_on(self, replica: int, ended: Ended) -> Sequence[AddRequest]:
        """Return the messages of a request to the replica that answers it."""
        if ended.lent is None or self.loans is None:
            return ended.messages
        if not self.answers >> replica & 1:  # it has these blocks itself
            self._send_back(ended.lent)
            return ended._replace(lent=None).messages
        self.loans.lend(replica, ended.lent)
        return ended.messages

    def _send_back(self, lent: LentBlocks | None) -> None:
        if lent is not None and self.loans is not None:
            self.loans.send_back(lent.blocks)

    def abort(self, request_ids: list[str]) -> list[str]:
        """Return the ids to abort at the replica that has these sequences."""
        halves = [half_name(name) for name in request_ids]
        return [half for half in halves if self._waiting.pop(half, None)] or request_ids

    def forget(self, replica: int) -> None:
        """Forget the halves of a lost replica, whose requests start again, and what it borrowed."""
        if self.loans is not None:
            self.loans.lose(replica)
        kept = self._waiting.items()
        self._waiting = {half: state for half, state in kept if state.replica != replica}
