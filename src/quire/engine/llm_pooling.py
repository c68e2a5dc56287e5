"""`LLM`'s methods for models that pool: embeddings, classes, scores."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast

from quire.core.outputs import (
    ClassificationOutput,
    EmbeddingOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringOutput,
)
from quire.core.pooling_params import PoolingParams
from quire.engine.arrivals import Arrivals
from quire.engine.input import InputProcessor
from quire.engine.pooling import check_task, instructed, pooled_output
from quire.engine.pooling_input import PoolingInput, PoolingPrompt, TextPair
from quire.engine.resolve import Resolved
from quire.engine.scoring import Scoring, paired

Prompts = PoolingPrompt | Sequence[PoolingPrompt]


class PoolingMethods(ABC):
    """What a pooling model offers; `LLM` runs the requests."""

    resolved: Resolved
    _input: InputProcessor
    _ids: itertools.count[int]

    @abstractmethod
    def _run(self, ids: list[str], arrivals: Arrivals, use_tqdm: bool) -> list[RequestOutput]: ...

    def encode(
        self,
        prompts: Prompts,
        pooling_params: PoolingParams | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What the model gives for one prompt or many, in their order: float32 vectors.

        Raises:
            InvalidRequestError: the model generates text, or a prompt cannot be served; then none
                is answered.
        """
        config = check_task(self.resolved.config.pooling, "score")
        params = pooling_params or PoolingParams()
        pooling, many = PoolingInput(self._input), _as_list(prompts)
        for prompt in many:
            pooling.check(prompt, params)
        ids = [str(next(self._ids)) for _ in many]
        requests = [(id_, prompt, params, 0) for id_, prompt in zip(ids, many, strict=True)]
        limit = self.resolved.config.scheduler.max_num_batched_tokens
        outputs = self._run(ids, Arrivals(pooling, requests, limit), use_tqdm)
        return [pooled_output(config, params, output) for output in outputs]

    def embed(
        self,
        prompts: Prompts,
        *,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
        prompt_name: str | None = None,
    ) -> list[PoolingRequestOutput[EmbeddingOutput]]:
        """Embeddings of texts or token ids; raises as `encode`.

        Args:
            prompt_name: which of the model's prompts (sentence-transformers') to put before texts;
                its default one, if it has one.
        """
        config = check_task(self.resolved.config.pooling, "embed")
        texts = [
            instructed(config, prompt, prompt_name) if isinstance(prompt, str) else prompt
            for prompt in _as_list(prompts)
        ]
        found = self.encode(texts, pooling_params, use_tqdm=use_tqdm)
        return [_with(output, EmbeddingOutput(output.outputs.data.tolist())) for output in found]

    def classify(
        self,
        prompts: Prompts,
        *,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
    ) -> list[PoolingRequestOutput[ClassificationOutput]]:
        """Probabilities of the model's classes; raises as `encode`."""
        check_task(self.resolved.config.pooling, "classify")
        found = self.encode(prompts, pooling_params, use_tqdm=use_tqdm)
        return [_with(out, ClassificationOutput(out.outputs.data.tolist())) for out in found]

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        *,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        """How well texts go together: one against each of several, or pair by pair.

        A cross-encoder's own score, or the cosine of two embeddings; raises as `encode`.
        """
        pairs = paired(data_1, data_2)
        config = self.resolved.config
        scoring = Scoring(config.pooling, config.model, pairs)
        found = self.encode(scoring.prompts, pooling_params, use_tqdm=use_tqdm)
        scores = scoring.scores([output.outputs.data for output in found])
        tokens = scoring.pairs_of([output.prompt_token_ids for output in found])
        return [
            PoolingRequestOutput(
                str(i), ScoringOutput(score), [token for each in ids for token in each]
            )
            for i, (score, ids) in enumerate(zip(scores, tokens, strict=True))
        ]


def _with(output: PoolingRequestOutput[PoolingOutput], outputs: Any) -> PoolingRequestOutput[Any]:
    return PoolingRequestOutput(
        output.request_id, outputs, output.prompt_token_ids, output.num_cached_tokens
    )


def _as_list(prompts: Prompts) -> list[PoolingPrompt]:
    """One prompt becomes a list of one; a list of whole numbers is one prompt."""
    if isinstance(prompts, str | Mapping | TextPair):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [cast(list[int], list(prompts))]
    return cast(list[PoolingPrompt], list(prompts))
