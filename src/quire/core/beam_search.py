"""Options and outputs of beam search. Names and meanings are vLLM's."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.named_fields import Elsewhere, NamedFields, check_types
from quire.core.sampling_params import MAX_LOGPROBS
from quire.system.records import dataclass

MAX_WIDTH = MAX_LOGPROBS // 2
"""A step considers twice as many continuations per beam, because some may end the text."""

MAX_PENALTY = 10.0
"""A larger power of a length could overflow."""


class BeamSearchParams(msgspec.Struct, metaclass=NamedFields, kw_only=True):
    """Options of the search. Invalid values raise `InvalidRequestError`, which names the field."""

    elsewhere: ClassVar = {
        "include_stop_str_in_output": Elsewhere("the text as it is", (False,)),
        "temperature": Elsewhere("SamplingParams: the search takes the likeliest tokens", (0.0,)),
    }

    beam_width: int
    """Beams per step, and texts returned in the end; up to `MAX_WIDTH`."""
    max_tokens: int
    """Most tokens to generate."""
    ignore_eos: bool = False
    """Do not end at the model's end-of-sequence tokens."""
    length_penalty: float = 1.0
    """The score is the log-probability over length ** length_penalty; the length includes the
    prompt. 0 prefers the likeliest text, larger values prefer longer ones. In [-10, 10]."""
    early_stopping: bool | Literal["never"] = False
    """True: end as soon as `beam_width` texts have ended. Else search to the end, so that no better
    text is missed."""

    def __post_init__(self) -> None:
        check_types(self)
        for name, most in (("beam_width", MAX_WIDTH), ("max_tokens", 2**31 - 1)):
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise InvalidRequestError(
                    f"{name} is {value}; it must be in [1, {most}].", param=name
                )
        if not -MAX_PENALTY <= self.length_penalty <= MAX_PENALTY:
            raise InvalidRequestError(
                f"length_penalty is {self.length_penalty}; it must be in "
                f"[-{MAX_PENALTY:g}, {MAX_PENALTY:g}].",
                param="length_penalty",
            )


@dataclass(slots=True)
class BeamSearchSequence:
    """A text that the search found.

    Attributes:
        tokens: prompt and output, as in `text`.
        cum_logprob: of the generated tokens.
        finish_reason: "stop" if the model ended it, else "length".
    """

    tokens: list[int]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The best `beam_width` texts of a prompt, the best first."""

    sequences: list[BeamSearchSequence]
