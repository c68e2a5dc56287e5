"""`suffix`: the text between a beginning and an end, for models that were trained to fill it in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.server.errors import invalid

if TYPE_CHECKING:
    from quire.frontend.input.input_processor import Prompt
    from quire.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class InfillFormat:
    """The tokens around the beginning and the end: BEGIN prefix HOLE suffix END → middle.

    Attributes:
        ends: tokens that end the middle, beside the model's own.
    """

    begin: str
    hole: str
    end: str
    ends: tuple[str, ...] = ()


FORMATS = {
    "Qwen2.5-Coder": InfillFormat(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
    ),
    "StarCoder": InfillFormat(
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        ("<fim_pad>", "<repo_name>", "<file_sep>"),
    ),
    "DeepSeek-Coder": InfillFormat("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
}


def infill_format(tokenizer: Tokenizer) -> InfillFormat:
    """Return the format whose tokens the model has.

    Raises:
        ApiError: 400, it has none.
    """
    for known in FORMATS.values():
        tokens = (known.begin, known.hole, known.end)
        if all(tokenizer.token_to_id(token) is not None for token in tokens):
            return known
    raise invalid(
        "suffix needs a model that was trained to fill in text, in the format of "
        f"{', '.join(FORMATS)}; this one has none of their tokens.",
        "suffix",
    )


def infill(prompts: Sequence[Prompt], suffix: str, known: InfillFormat) -> list[Prompt]:
    """Return the prompts with the suffix, as the model was trained to see them.

    Raises:
        ApiError: 400, a prompt is no text.
    """
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        raise invalid("suffix goes with prompts that are texts.", "suffix")
    return [f"{known.begin}{text}{known.hole}{suffix}{known.end}" for text in texts]


def ends_of(known: InfillFormat, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the tokens that end the middle."""
    found = map(tokenizer.token_to_id, known.ends)
    return [token for token in found if token is not None]
