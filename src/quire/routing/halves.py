"""A request in two: one replica computes the prompt and the first token, another the rest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from quire.core.cost import StepCost
from quire.core.messages import AddRequest, CoreOutput, StepOutputs
from quire.core.options import KVTransfer, LentBlocks
from quire.core.request import FinishReason

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


def half_name(request_id: str) -> str:
    return request_id + _SUFFIX


def is_half(request_id: str) -> bool:
    return request_id.endswith(_SUFFIX)


def half_of(message: AddRequest) -> AddRequest:
    """Return a request for the prompt of another, and for the first token of its answer.

    The prompt's blocks are then handed over.
    """
    half = message.handed(KVTransfer(hands_over=True, first_only=True))
    half.request_id = half_name(message.request_id)
    return half


class Ended(NamedTuple):
    """What is left of a request whose half has ended.

    Attributes:
        children: the sequences that another replica answers.
        sampled: the first token of the first one, if it has one.
        lent: the prompt's blocks, if the replicas share memory.
    """

    children: Sequence[AddRequest]
    sampled: tuple[int, ...] = ()
    lent: LentBlocks | None = None

    @property
    def messages(self) -> list[AddRequest]:
        """Return the messages to that replica; the first one brings the prompt's blocks."""
        first, *others = self.children
        return [first.handed(KVTransfer(lent=self.lent, sampled=self.sampled)), *others]


def end_half(step: StepOutputs, output: CoreOutput, children: Sequence[AddRequest]) -> Ended:
    """Make the output of a half that of its request's first sequence; return what is left to do.

    A half that fails has no output: a replica for answers then computes what it does not find.

    Args:
        output: one of `step`.
        children: the request's sequences.
    """
    lent, output.lent = output.lent, None
    output.kv_transfer_params = None  # of the folder: not the client's
    if output.finish_reason is FinishReason.ERROR:
        step.outputs.remove(output)
        return Ended(children, (), lent)
    first, *others = children
    output.request_id = first.request_id
    if output.finish_reason is FinishReason.STOP or first.sampling_params.max_tokens == 1:
        return Ended(others, (), lent)
    output.finish_reason = None
    return Ended(children, tuple(output.new_token_ids), lent)
