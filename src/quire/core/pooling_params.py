"""What a request wants of a model that pools. Names and meanings are vLLM's."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.named_fields import Elsewhere, NamedFields
from quire.core.typed import check_types

WHOLE_CONTEXT = -1
"""As `truncate_prompt_tokens`: as many as the model takes."""


class PoolingParams(
    msgspec.Struct, metaclass=NamedFields, kw_only=True, frozen=True, omit_defaults=True
):
    """Options of one embedding, score or classification; None is the model's own way.

    Invalid values raise `InvalidRequestError`, which names the field, the value and the range.
    """

    elsewhere: ClassVar = {
        "activation": Elsewhere("use_activation"),
        "softmax": Elsewhere("use_activation"),
        "output_kind": Elsewhere("nothing: there is one output"),
        "requires_token_ids": Elsewhere("prompt_token_ids of the output", (False,)),
        "returned_token_ids": Elsewhere(
            "SamplingParams(logprob_token_ids=…) of a generating model"
        ),
        "skip_reading_prefix_cache": Elsewhere(
            "nothing: whole prompts are computed", (True, False)
        ),
        "step_tag_id": Elsewhere("a classifier of whole texts; there are no reward models"),
        "task": Elsewhere("LLM.encode(…, pooling_task=…), embed, classify or score"),
    }

    truncate_prompt_tokens: int | None = None
    """Keep so many tokens of a longer prompt, those that stand around it included; -1 as many as
    the model takes. None: a prompt that is too long is an error."""
    truncation_side: Literal["left", "right"] = "right"
    """Where a longer prompt loses tokens: `right` keeps its beginning."""
    dimensions: int | None = None
    """Keep the first so many numbers of an embedding, of models trained for that (Matryoshka)."""
    normalize: bool | None = None
    """Scale an embedding to length 1."""
    use_activation: bool | None = None
    """Apply the sigmoid, or softmax, to what a classifier gives."""

    def __post_init__(self) -> None:
        check_types(self)
        kept = self.truncate_prompt_tokens
        if kept is not None and kept != WHOLE_CONTEXT and kept < 1:
            raise InvalidRequestError(
                f"truncate_prompt_tokens is {kept}; it must be at least 1, or -1 for as many as "
                "the model takes.",
                param="truncate_prompt_tokens",
            )
        if self.dimensions is not None and self.dimensions < 1:
            raise InvalidRequestError(
                f"dimensions is {self.dimensions}; it must be at least 1.", param="dimensions"
            )
