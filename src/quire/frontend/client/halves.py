"""Prompts that some replicas compute and others answer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from quire.core.cost import StepCost
from quire.core.messages import AddRequest, StepOutputs
from quire.core.options import KVTransfer, LentBlocks
from quire.core.sampling_params import SamplingParams
from quire.frontend.client.ledger import Ledger

if TYPE_CHECKING:
    from quire.frontend.output.request_state import RequestState

MESSAGE_SECONDS = 1e-3
"""Of the messages of a hand-off."""
_LONGEST = 8192
_SUFFIX = "/prompt"


def most_alone(cost: StepCost, *, copied: bool) -> int:
    """Return the most uncached tokens of a prompt that a replica for answers computes itself.

    They make one of its steps longer. A hand-off takes a step of another replica and messages, and
    two copies of the blocks if the replicas share no memory.
    """
    step = cost.seconds(1, 1, 1)

    def is_slower(num_tokens: int) -> bool:
        longer = cost.seconds(num_tokens + 1, 2, num_tokens + 1) - step
        copies = 2 * cost.copy_seconds(num_tokens) if copied else 0.0
        return longer > step + MESSAGE_SECONDS + copies

    return bisect_left(range(1, _LONGEST), True, key=is_slower)


class Halves:
    """Requests whose prompts are being computed by a replica for prompts.

    The half of a request is a request of its own, for one token that nobody gets. It ends when the
    prompt's blocks can be found by other replicas. A half that fails ends, too: a replica for
    answers computes what it does not find.

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
        half = _with(state.request.children[0], KVTransfer(hands_over=True))
        name = half.request_id + _SUFFIX
        self._waiting[name] = state
        return replace(
            half,
            request_id=name,
            sampling_params=SamplingParams(max_tokens=1, temperature=0.0),
            inputs=replace(half.inputs, eos_token_ids=()),
        )

    def take(self, step: StepOutputs) -> list[tuple[RequestState, LentBlocks | None]]:
        """Remove the ends of halves from a step's outputs; return the requests to go on with, and
        the blocks that their prompts' replica lends."""
        found: list[tuple[RequestState, LentBlocks | None]] = []
        for output in [output for output in step.outputs if output.request_id.endswith(_SUFFIX)]:
            if (state := self._waiting.pop(output.request_id, None)) is not None:
                step.outputs.remove(output)
                found.append((state, output.lent))
            elif output.lent is not None and self.loans is not None:  # it was aborted meanwhile
                self.loans.send_back(output.lent.blocks)
        return found

    def go_on(
        self, replica: int, children: Sequence[AddRequest], lent: LentBlocks | None
    ) -> Sequence[AddRequest]:
        """Return the messages of a request to the replica that answers it."""
        if lent is None or self.loans is None:
            return children
        if not self.answers >> replica & 1:  # it has these blocks itself
            self.loans.send_back(lent.blocks)
            return children
        self.loans.lend(replica, lent.blocks)
        first, *others = children
        return [_with(first, KVTransfer(lent=lent)), *others]

    def abort(self, request_ids: list[str]) -> list[str]:
        """Return the ids to abort at the replica that has these sequences."""
        halves = [name + _SUFFIX for name in request_ids]
        return [half for half in halves if self._waiting.pop(half, None)] or request_ids

    def forget(self, replica: int) -> None:
        """Forget the halves of a lost replica, whose requests start again, and what it borrowed."""
        if self.loans is not None:
            self.loans.lose(replica)
        kept = self._waiting.items()
        self._waiting = {half: state for half, state in kept if state.replica != replica}


def _with(message: AddRequest, transfer: KVTransfer) -> AddRequest:
    """Return a request with another part in a hand-off."""
    options = replace(message.inputs.options, kv_transfer=transfer)
    return replace(message, inputs=replace(message.inputs, options=options))
