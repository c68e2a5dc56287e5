"""What the scheduler asks of the executor for one step, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from quire.core.messages import TokenLogprobs
from quire.core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence the runner does not hold: new, or resumed after a preemption.

    Attributes:
        token_ids: all tokens known so far (prompt, then output if it was preempted).
        num_prompt_tokens: how many of them are the prompt; penalties tell them apart.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling_params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step, as parallel lists in batch order.

    The runner first drops `removed`, then adds `new_sequences`, then for entry i appends
    `new_block_ids[i]` to the sequence's block table (for a new sequence: the whole table)
    and computes its tokens [num_computed_tokens[i], + num_scheduled_tokens[i]).
    """

    step: int
    request_ids: list[str]
    num_scheduled_tokens: list[int]
    num_computed_tokens: list[int]
    new_block_ids: list[list[int]]
    new_sequences: list[NewSequence]
    removed: list[str]
    """Finished, aborted or preempted since the last step."""
    total_num_scheduled_tokens: int

    @property
    def empty(self) -> bool:
        """Whether nothing is computed; `removed` may still have something to tell."""
        return not self.request_ids


class StepTimes(NamedTuple):
    """Seconds that a step took the runner; see `CoreTimes`."""

    prepare: float = 0.0
    model: float = 0.0
    sample: float = 0.0


@dataclass(slots=True)
class ModelOutput:
    """What one step computed, in the order of `SchedulerOutput.request_ids`.

    Attributes:
        sampled_token_ids: new tokens of each entry; [] where a prompt is not finished yet.
        logprobs: per request id, one `TokenLogprobs` a sampled token, where asked for.
        prompt_logprobs: per request id, one `TokenLogprobs` for each prompt token computed this
            step that predicts a following prompt token, where asked for.
        errors: per request id, why its row could not be sampled (a NaN logit, say); such
            an entry has no sampled tokens and the request ends with `FinishReason.ERROR`.
        times: where the step's time went.
    """

    sampled_token_ids: list[list[int]]
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    times: StepTimes = field(default_factory=StepTimes)
