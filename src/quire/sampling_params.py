"""vLLM's import path for `quire.core.sampling_params` and what belongs to it."""

from typing import Any

from quire.core.beam_search import BeamSearchParams
from quire.core.sampling_params import RepetitionDetectionParams, RequestOutputKind, SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams, ThinkingMarks

__all__ = [
    "BeamSearchParams",
    "RepetitionDetectionParams",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "ThinkingMarks",
]


def __getattr__(name: str) -> Any:
    if name == "GuidedDecodingParams":
        raise ImportError("GuidedDecodingParams is called StructuredOutputsParams.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
