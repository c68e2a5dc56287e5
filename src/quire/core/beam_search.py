"""Beam search as its caller sees it. Names and meanings are vLLM's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.named_fields import Elsewhere, NamedFields
from quire.core.sampling_params import MAX_LOGPROBS
from quire.core.typed import check_types

MAX_WIDTH = MAX_LOGPROBS // 2
"""A step looks at twice as many continuations of each beam, of which some may end the text."""

MAX_PENALTY = 10.0
"""A larger power of a length could be infinite."""


class BeamSearchParams(msgspec.Struct, metaclass=NamedFields, kw_only=True):
    """How to search. Invalid values raise `InvalidRequestError`, which names the field."""

    elsewhere: ClassVar = {
        "include_stop_str_in_output": Elsewhere("the text as it is", (False,)),
        "temperature": Elsewhere("SamplingParams: the search takes the likeliest tokens", (0.0,)),
    }

    beam_width: int
    """Texts that are kept at each length, and returned in the end; up to `MAX_WIDTH`."""
    max_tokens: int
    """Most tokens to generate."""
    ignore_eos: bool = False
    """Do not end where the model does."""
    length_penalty: float = 1.0
    """Scores are log-probabilities over length ** length_penalty, the prompt counted in: 0 is the
    likeliest text, more favours longer ones. In [-10, 10]."""
    early_stopping: bool | Literal["never"] = False
    """True: end as soon as `beam_width` texts have ended. Else the search goes on to its end, and
    no better text is missed."""

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
    """One of the texts that were found.

    Attributes:
        tokens: the prompt's included, as `text` has it.
        cum_logprob: of the tokens generated.
        finish_reason: "stop" where the model ended it, else "length".
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
