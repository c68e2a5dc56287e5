"""`LLM`'s methods for pooling models: embeddings, classes, scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from quire.core.options import NO_OPTIONS, RequestOptions
from quire.core.outputs import (
    ClassificationOutput,
    EmbeddingOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringOutput,
)
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import SamplingParams
from quire.frontend.each import as_list, one_each
from quire.frontend.input.pooling_input import PoolingPrompt
from quire.frontend.input.pooling_task import check_task, instructed
from quire.frontend.input.prompts import Prompt
from quire.frontend.output.pooling_output import pooled_output
from quire.frontend.scoring import Scoring, paired
from quire.resolve.engine import Resolved

Prompts = PoolingPrompt | Sequence[PoolingPrompt]
Params = PoolingParams | Sequence[PoolingParams] | None
Asked = tuple[Prompt | PoolingPrompt, SamplingParams | PoolingParams, RequestOptions]
"""A request for `_run`."""
UseTqdm = bool | Callable[..., Any]
"""Whether to show a progress bar, or a function that makes one."""


class PoolingMethods(ABC):
    """Methods of pooling models; `LLM` runs the requests."""

    resolved: Resolved

    @abstractmethod
    def _run(self, requests: Sequence[Asked], use_tqdm: UseTqdm) -> list[RequestOutput]: ...

    def encode(
        self,
        prompts: Prompts,
        pooling_params: Params = None,
        *,
        use_tqdm: UseTqdm = True,
        pooling_task: str | None = None,
        truncate_prompt_tokens: int | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Return the model's float32 vectors for one prompt or many, in their order.

        Args:
            pooling_params: one for all prompts, or one each.
            pooling_task: "embed", "classify" or "score"; the model must support it.
            truncate_prompt_tokens: as in `PoolingParams`, for all prompts.

        Raises:
            InvalidRequestError: the model generates text, or a prompt cannot be served. Then no
                prompt is answered.
        """
        config = check_task(self.resolved.config.pooling, pooling_task or "score")
        many: list[PoolingPrompt] = as_list(prompts)
        given = PoolingParams() if pooling_params is None else pooling_params
        each = one_each("pooling_params", given, PoolingParams, len(many))
        if (kept := truncate_prompt_tokens) is not None:
            each = [msgspec.structs.replace(one, truncate_prompt_tokens=kept) for one in each]
        requests = [(*asked, NO_OPTIONS) for asked in zip(many, each, strict=True)]
        outputs = self._run(requests, use_tqdm)
        return [
            pooled_output(config, params, output)
            for params, output in zip(each, outputs, strict=True)
        ]

    def embed(
        self,
        prompts: Prompts,
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: Params = None,
        prompt_name: str | None = None,
        truncate_prompt_tokens: int | None = None,
    ) -> list[PoolingRequestOutput[EmbeddingOutput]]:
        """Return embeddings of texts or token ids; raises as `encode`.

        Args:
            prompt_name: which of the model's prompts (sentence-transformers) to put before each
                text; the model's default prompt if None.
        """
        config = check_task(self.resolved.config.pooling, "embed")
        texts = [
            instructed(config, prompt, prompt_name) if isinstance(prompt, str) else prompt
            for prompt in as_list(prompts)
        ]
        kept = truncate_prompt_tokens
        found = self.encode(texts, pooling_params, use_tqdm=use_tqdm, truncate_prompt_tokens=kept)
        return [_with(output, EmbeddingOutput(output.outputs.data.tolist())) for output in found]

    def classify(
        self,
        prompts: Prompts,
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: Params = None,
        truncate_prompt_tokens: int | None = None,
    ) -> list[PoolingRequestOutput[ClassificationOutput]]:
        """Return probabilities of the model's classes; raises as `encode`."""
        check_task(self.resolved.config.pooling, "classify")
        kept = truncate_prompt_tokens
        found = self.encode(prompts, pooling_params, use_tqdm=use_tqdm, truncate_prompt_tokens=kept)
        return [_with(out, ClassificationOutput(out.outputs.data.tolist())) for out in found]

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: Params = None,
        truncate_prompt_tokens: int | None = None,
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        """Return how well texts match: one against each of several, or pair by pair.

        The score is a cross-encoder's, or the cosine of two embeddings. Raises as `encode`.
        """
        pairs = paired(data_1, data_2)
        config = self.resolved.config
        scoring = Scoring(config.pooling, config.model, pairs)
        kept, prompts = truncate_prompt_tokens, scoring.prompts
        found = self.encode(prompts, pooling_params, use_tqdm=use_tqdm, truncate_prompt_tokens=kept)
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
