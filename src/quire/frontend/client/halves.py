"""Prompts that some replicas compute and others answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from quire.core.messages import AddRequest, StepOutputs
from quire.core.options import KVTransfer
from quire.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from quire.frontend.output.request_state import RequestState

ALONE = 128
"""Most uncached prompt tokens that a replica for answers computes itself."""
_SUFFIX = "/prompt"


class Halves:
    """Requests whose prompts are being computed by a replica for prompts.

    The half of a request is a request of its own, for one token that nobody gets. It ends when the
    prompt's blocks can be found by other replicas. A half that fails ends, too: a replica for
    answers computes what it does not find.

    Attributes:
        prompts, answers: masks of the replicas for each.
    """

    def __init__(self, num_prefill: int, num_replicas: int) -> None:
        self.prompts = (1 << num_prefill) - 1
        self.answers = (1 << num_replicas) - 1 - self.prompts
        self._waiting: dict[str, RequestState] = {}

    def divides(self, first: AddRequest) -> bool:
        """Return whether a request's prompt may be computed apart, given its first sequence."""
        options, params = first.inputs.options, first.sampling_params
        computes_all = options.skip_reading_prefix_cache or params.prompt_logprobs is not None
        return options.kv_transfer is None and not computes_all

    def begin(self, state: RequestState) -> AddRequest:
        """Return the half of a request for a replica for prompts."""
        first = state.request.children[0]
        half = first.request_id + _SUFFIX
        self._waiting[half] = state
        options = replace(first.inputs.options, kv_transfer=KVTransfer(hands_over=True))
        inputs = replace(first.inputs, options=options, eos_token_ids=())
        params = SamplingParams(max_tokens=1, temperature=0.0)
        return AddRequest(half, first.prompt_token_ids, params, first.arrival_time, inputs)

    def take(self, step: StepOutputs) -> list[RequestState]:
        """Remove the ends of halves from a step's outputs; return the requests to go on with."""
        if not self._waiting:
            return []
        ended = [output for output in step.outputs if output.request_id in self._waiting]
        for output in ended:
            step.outputs.remove(output)
        return [self._waiting.pop(output.request_id) for output in ended]

    def abort(self, request_ids: list[str]) -> list[str]:
        """Return the ids to abort at the replica that has these sequences."""
        halves = [name + _SUFFIX for name in request_ids]
        return [half for half in halves if self._waiting.pop(half, None)] or request_ids

    def forget(self, replica: int) -> None:
        """Forget the halves of a lost replica; their requests start again."""
        kept = self._waiting.items()
        self._waiting = {half: state for half, state in kept if state.replica != replica}
