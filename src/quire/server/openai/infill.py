"""`suffix`: the text between a beginning and an end, for models that were trained to fill it in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.core.errors import ContextLengthError
from quire.server.errors import invalid
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire.frontend.async_llm import AsyncLLM
    from quire.frontend.input.prompts import Prompt
    from quire.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class InfillFormat:
    """The tokens around the beginning and the end: BEGIN prefix HOLE suffix END → middle.

    Attributes:
        end: empty if the model needs none.
        ends: tokens that end the middle, in addition to the model's own.
        apart: the texts are tokenized separately, the suffix without the tokenizer's leading space.
        suffix_first: HOLE suffix BEGIN prefix → middle.
    """

    begin: str
    hole: str
    end: str = ""
    ends: tuple[str, ...] = ()
    apart: bool = False
    suffix_first: bool = False

    @property
    def marks(self) -> list[str]:
        return [mark for mark in (self.begin, self.hole, self.end) if mark]


FORMATS = {
    "Qwen2.5-Coder": InfillFormat(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
    ),
    "StarCoder": InfillFormat(
        "<fim_prefix>", "<fim_suffix>", "<fim_middle>", ("<fim_pad>", "<repo_name>", "<file_sep>")
    ),
    "DeepSeek-Coder": InfillFormat("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    "CodeLlama": InfillFormat("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",), apart=True),
    "Codestral": InfillFormat("[PREFIX]", "[SUFFIX]", apart=True, suffix_first=True),
}
_NO_SPACE = "☺"
"""A text in front of another one, which gets the tokenizer's leading space; its tokens are removed.
"""


def infill_format(tokenizer: Tokenizer) -> InfillFormat:
    """Return the format whose tokens the model has.

    Raises:
        ApiError: 400 if it has none.
    """
    for known in FORMATS.values():
        if all(tokenizer.token_to_id(mark) is not None for mark in known.marks):
            return known
    raise invalid(
        "suffix needs a model that was trained to fill in text, in the format of "
        f"{', '.join(FORMATS)}; this one has none of their tokens.",
        "suffix",
    )


async def infill(
    prompts: Sequence[Prompt], suffix: str, known: InfillFormat, engine: AsyncLLM
) -> list[Prompt]:
    """Return the prompts with the suffix, as the model was trained to see them.

    Raises:
        ApiError: 400 if a prompt is not a text.
    """
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        raise invalid("suffix goes with prompts that are texts.", "suffix")
    if not known.apart:
        return [f"{known.begin}{text}{known.hole}{suffix}{known.end}" for text in texts]
    for text in (*texts, suffix):
        check_length(engine, text)
    lead = await engine.tokenize(_NO_SPACE, False)
    behind = await engine.tokenize(_NO_SPACE + suffix, False)
    if behind[: len(lead)] == lead:
        behind = behind[len(lead) :]
    else:
        behind = await engine.tokenize(suffix, False)
    return [
        {"prompt_token_ids": _joined(known, await engine.tokenize(text, False), behind, engine)}
        for text in texts
    ]


def _joined(
    known: InfillFormat, before: list[int], behind: list[int], engine: AsyncLLM
) -> list[int]:
    tokenizer = engine.tokenizer
    begin, hole, *end = [i for i in map(tokenizer.token_to_id, known.marks) if i is not None]
    bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    if known.suffix_first:
        return [*bos, hole, *behind, begin, *before, *end]
    return [*bos, begin, *before, hole, *behind, *end]


def check_length(engine: AsyncLLM, text: str) -> None:
    """Raise `ContextLengthError` for a text that is certainly too long."""
    least = engine.tokenizer.least_tokens(text)
    if least >= engine.max_total_tokens:
        raise ContextLengthError(least, engine.max_total_tokens, counted=False)


def ends_of(known: InfillFormat, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the tokens that end the middle."""
    found = map(tokenizer.token_to_id, known.ends)
    return [token for token in found if token is not None]
