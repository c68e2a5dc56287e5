"""Outputs of the Python API. Names are vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quire.system.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


@dataclass(slots=True)
class Logprob:
    """One token's log-probability, its rank (1 is the likeliest) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PositionLogprobs = Mapping[int, Logprob]
"""Token id → `Logprob` at one position; the first entry is the token at this position. A dict for
users."""


@dataclass(slots=True)
class CompletionOutput:
    """One of a request's n completions.

    Attributes:
        finish_reason: "stop", "length", "repetition", "abort", "error"; None while it runs.
        stop_reason: the stop string or token id that ended it; None for end of sequence.
        text_ends: where each token's text ends in the whole text; a token that completes no
            character adds no text.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    text_ends: list[int] = field(default_factory=list)

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Times of a request, in seconds on the monotonic clock; 0.0 until they are known.

    Attributes:
        num_draft_tokens, num_accepted_tokens: verified drafts of ended sequences, and right ones.
    """

    arrival_time: float = 0.0
    first_scheduled_time: float = 0.0
    first_token_time: float = 0.0
    last_token_time: float = 0.0
    finished_time: float = 0.0
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(slots=True)
class RequestOutput:
    """A request's answer, or the part of it that `SamplingParams.output_kind` asks for.

    Attributes:
        prompt_token_ids: `core.request.EMBEDDED` for each token given as an embedding.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    pooled: bytes | None = None
    """What a pooling model returned: float32, before `pooling_output` finishes it."""
    kv_transfer_params: dict[str, Any] | None = None
    """What a consumer needs to continue from this prompt's KV blocks."""


@dataclass(slots=True)
class PoolingOutput:
    """A pooling model's vector: float32 [hidden_size], or [num_labels] for a classifier."""

    data: NDArray[np.float32]


@dataclass(slots=True)
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    """How well two texts match; higher is better."""

    score: float


Outputs = TypeVar("Outputs")


@dataclass(slots=True)
class PoolingRequestOutput(Generic[Outputs]):
    """The answer to one prompt or one pair."""

    request_id: str
    outputs: Outputs
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


EmbeddingRequestOutput = PoolingRequestOutput[EmbeddingOutput]
ClassificationRequestOutput = PoolingRequestOutput[ClassificationOutput]
ScoringRequestOutput = PoolingRequestOutput[ScoringOutput]
