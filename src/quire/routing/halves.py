"""A request in two: one replica computes the prompt, another answers."""

from __future__ import annotations

from bisect import bisect_left

from msgspec.structs import replace

from quire.core.cost import StepCost
from quire.core.messages import AddRequest
from quire.core.options import KVTransfer, LentBlocks
from quire.core.sampling_params import SamplingParams

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
    """Return the id of a request's half."""
    return request_id + _SUFFIX


def is_half(request_id: str) -> bool:
    """Return whether this is the id of a half."""
    return request_id.endswith(_SUFFIX)


def half_of(message: AddRequest) -> AddRequest:
    """Return a request for the prompt of another, whose blocks are then handed over."""
    half = _with(message, KVTransfer(hands_over=True))
    return replace(
        half,
        request_id=half_name(message.request_id),
        sampling_params=SamplingParams(max_tokens=1, temperature=0.0),
        inputs=replace(half.inputs, eos_token_ids=()),
    )


def borrowing(message: AddRequest, lent: LentBlocks) -> AddRequest:
    """Return a request that brings the blocks of its prompt."""
    return _with(message, KVTransfer(lent=lent))


def _with(message: AddRequest, transfer: KVTransfer) -> AddRequest:
    """Return a request with another part in a hand-off."""
    options = replace(message.inputs.options, kv_transfer=transfer)
    return replace(message, inputs=replace(message.inputs, options=options))
