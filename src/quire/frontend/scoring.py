"""Scores of text pairs: the prompts for the model, and the scores from its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from quire.core.errors import InvalidRequestError
from quire.core.model_config import ModelConfig, PoolingConfig
from quire.frontend.input.pooling_input import PoolingPrompt, TextPair
from quire.frontend.input.pooling_task import check_task, instructed

if TYPE_CHECKING:
    from quire.frontend.output.pooling_output import Floats

T = TypeVar("T")


class Scoring:
    """Scores pairs with a cross-encoder or with embeddings.

    A cross-encoder reads each pair together. An embedding model reads each distinct text once; the
    score is the cosine.

    Attributes:
        prompts: the model's prompts; `scores` takes its answers in the same order.

    Raises:
        InvalidRequestError: the model computes no scores.
    """

    def __init__(
        self, config: PoolingConfig | None, model: ModelConfig, pairs: Sequence[tuple[str, str]]
    ) -> None:
        config = check_task(config, "score")
        self._pairs = pairs
        self._places: dict[str, int] = {}
        self.prompts: list[PoolingPrompt]
        if config.task == "classify":
            if model.num_labels != 1:
                raise InvalidRequestError(
                    f"This model has {model.num_labels} classes; a score needs one.",
                    fix="Ask for /classify, or serve a reranker.",
                    param="model",
                )
            self.prompts = [TextPair(*pair) for pair in pairs]
            return
        for pair in pairs:
            for text in pair:
                self._places.setdefault(text, len(self._places))
        self.prompts = [instructed(config, text, None) for text in self._places]

    def scores(self, vectors: Sequence[Floats]) -> list[float]:
        """Return the pairs' scores from the model's answers to `prompts`."""
        if not self._places:
            return [float(vector[0]) for vector in vectors]
        from quire.frontend.output.pooling_output import cosine

        return [cosine(*pair) for pair in self.pairs_of(vectors)]

    def pairs_of(self, answers: Sequence[T]) -> list[tuple[T, ...]]:
        """Return each pair's answers: one for a cross-encoder, else two."""
        if not self._places:
            return [(answer,) for answer in answers]
        return [tuple(answers[self._places[text]] for text in pair) for pair in self._pairs]


def paired(first: str | Sequence[str], second: str | Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs: one text with each of several, or two lists of equal length.

    Raises:
        InvalidRequestError: the lengths differ, or a list is empty.
    """
    ones = [first] if isinstance(first, str) else list(first)
    others = [second] if isinstance(second, str) else list(second)
    if not ones or not others:
        raise InvalidRequestError("There are no texts to score.", param="text_1")
    if len(ones) == 1:
        ones *= len(others)
    if len(ones) != len(others):
        raise InvalidRequestError(
            f"There are {len(ones)} texts against {len(others)}.",
            fix="Give one text against any number, or as many on both sides.",
            param="text_1",
        )
    return list(zip(ones, others, strict=True))
