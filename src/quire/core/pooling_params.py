"""Options of a pooling request. Names and meanings are vLLM's."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.named_fields import Elsewhere, NamedFields, check_types

WHOLE_CONTEXT = -1
"""As `truncate_prompt_tokens`: as many tokens as the model allows."""


class PoolingParams(
    msgspec.Struct, metaclass=NamedFields, kw_only=True, frozen=True, omit_defaults=True
):
    """Options of one embedding, score or classification; None means the model's default.

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
    """Keep N tokens of a longer prompt, including special tokens; -1 keeps as many as the model
    allows. None: a prompt that is too long is an error."""
    truncation_side: Literal["left", "right"] = "right"
    """The side that loses tokens: `right` keeps the prompt's beginning."""
    dimensions: int | None = None
    """Keep the first N numbers of an embedding, if the model was trained for it (Matryoshka)."""
    normalize: bool | None = None
    """Scale an embedding to length 1."""
    use_activation: bool | None = None
    """Apply sigmoid or softmax to a classifier's outputs."""

    def __post_init__(self) -> None:
        check_types(self)
        check_truncation(self.truncate_prompt_tokens)
        if self.dimensions is not None and self.dimensions < 1:
            raise InvalidRequestError(
                f"dimensions is {self.dimensions}; it must be at least 1.", param="dimensions"
            )


def check_truncation(kept: int | None) -> None:
    """Raise `InvalidRequestError` for a wrong `truncate_prompt_tokens`."""
    if kept is not None and kept != WHOLE_CONTEXT and kept < 1:
        raise InvalidRequestError(
            f"truncate_prompt_tokens is {kept}; it must be at least 1, or -1 for as many as fit.",
            param="truncate_prompt_tokens",
        )
