"""Scores of pairs of texts: what to ask of the model, and what its answers mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from quire.core.config import ModelConfig, PoolingConfig
from quire.core.errors import InvalidRequestError
from quire.frontend.input.pooling_input import PoolingPrompt, TextPair
from quire.frontend.output.pooling_output import Floats, check_task, cosine, instructed

T = TypeVar("T")


class Scoring:
    """Pairs that are to be scored: by a cross-encoder, each pair read together, or by how alike
    their embeddings are, each text read once.

    Attributes:
        prompts: what the model is asked, in order; `scores` takes what it gives.

    Raises:
        InvalidRequestError: the model gives no scores.
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
        """The pairs' scores, of the model's finished answers to `prompts`."""
        if not self._places:
            return [float(vector[0]) for vector in vectors]
        return [cosine(*pair) for pair in self.pairs_of(vectors)]

    def pairs_of(self, answers: Sequence[T]) -> list[tuple[T, ...]]:
        """By pair, the answers to the prompts that it was made into: two, or one of both texts."""
        if not self._places:
            return [(answer,) for answer in answers]
        return [tuple(answers[self._places[text]] for text in pair) for pair in self._pairs]


def paired(first: str | Sequence[str], second: str | Sequence[str]) -> list[tuple[str, str]]:
    """One text against each of several, or several against as many.

    Raises:
        InvalidRequestError: neither fits.
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
