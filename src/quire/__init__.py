"""Quire: LLM inference and serving.

The public names load on first use, so `import quire` itself costs milliseconds:

    from quire import LLM, SamplingParams
"""

TYPE_CHECKING = False  # `typing` is not imported: it would take longer than all of this
if TYPE_CHECKING:
    from quire.core.beam_search import BeamSearchParams
    from quire.core.lora import LoRARequest
    from quire.core.outputs import (
        ClassificationOutput,
        ClassificationRequestOutput,
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        RequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from quire.core.pooling_params import PoolingParams
    from quire.core.sampling_params import SamplingParams
    from quire.core.structured_outputs import StructuredOutputsParams, ThinkingMarks
    from quire.engine.arg_utils import AsyncEngineArgs
    from quire.engine.async_llm_engine import AsyncLLMEngine
    from quire.frontend.async_llm import AsyncLLM
    from quire.frontend.input.prompts import PromptType, TextPrompt, TokensPrompt
    from quire.frontend.llm import LLM
    from quire.frontend.llm_engine import LLMEngine
    from quire.resolve.arguments import EngineArgs

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "LLMEngine",
    "LoRARequest",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestOutput",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "ThinkingMarks",
    "TokensPrompt",
    "__version__",
]

__version__ = "0.1.0"

_HOME = {
    "LLM": "quire.frontend.llm",
    "AsyncEngineArgs": "quire.engine.arg_utils",
    "AsyncLLM": "quire.frontend.async_llm",
    "AsyncLLMEngine": "quire.engine.async_llm_engine",
    "BeamSearchParams": "quire.core.beam_search",
    "ClassificationOutput": "quire.core.outputs",
    "ClassificationRequestOutput": "quire.core.outputs",
    "CompletionOutput": "quire.core.outputs",
    "EmbeddingOutput": "quire.core.outputs",
    "EmbeddingRequestOutput": "quire.core.outputs",
    "EngineArgs": "quire.resolve.arguments",
    "LLMEngine": "quire.frontend.llm_engine",
    "LoRARequest": "quire.core.lora",
    "PoolingOutput": "quire.core.outputs",
    "PoolingParams": "quire.core.pooling_params",
    "PoolingRequestOutput": "quire.core.outputs",
    "PromptType": "quire.frontend.input.prompts",
    "RequestOutput": "quire.core.outputs",
    "SamplingParams": "quire.core.sampling_params",
    "ScoringOutput": "quire.core.outputs",
    "ScoringRequestOutput": "quire.core.outputs",
    "StructuredOutputsParams": "quire.core.structured_outputs",
    "TextPrompt": "quire.frontend.input.prompts",
    "ThinkingMarks": "quire.core.structured_outputs",
    "TokensPrompt": "quire.frontend.input.prompts",
}
_ABSENT = {
    "ModelRegistry": "architectures are Quire's own: `quire.models.registry`",
    "initialize_ray_cluster": "ranks are processes of one machine: tensor_parallel_size",
}
"""vLLM's names that Quire does not have, and why."""


def __getattr__(name: str) -> object:
    if name in _ABSENT:
        raise ImportError(f"Quire has no {name}: {_ABSENT[name]}.")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from quire.system.garbage import no_collection

    with no_collection():
        value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # the next look-up finds it without this function
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
