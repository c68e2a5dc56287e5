"""Quire: LLM inference and serving.

The public names load on first use, so `import quire` itself costs milliseconds:

    from quire import LLM, SamplingParams
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.core.beam_search import BeamSearchParams
    from quire.core.config import EngineArgs
    from quire.core.lora import LoRARequest
    from quire.core.outputs import CompletionOutput, PoolingRequestOutput, RequestOutput
    from quire.core.pooling_params import PoolingParams
    from quire.core.prompts import TextPrompt, TokensPrompt
    from quire.core.sampling_params import SamplingParams
    from quire.core.structured_outputs import StructuredOutputsParams
    from quire.engine.async_engine import AsyncLLM
    from quire.engine.llm import LLM

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchParams",
    "CompletionOutput",
    "EngineArgs",
    "LoRARequest",
    "PoolingParams",
    "PoolingRequestOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]

__version__ = "0.1.0"

_HOME = {
    "LLM": "quire.engine.llm",
    "AsyncLLM": "quire.engine.async_engine",
    "BeamSearchParams": "quire.core.beam_search",
    "CompletionOutput": "quire.core.outputs",
    "EngineArgs": "quire.core.config",
    "LoRARequest": "quire.core.lora",
    "PoolingParams": "quire.core.pooling_params",
    "PoolingRequestOutput": "quire.core.outputs",
    "RequestOutput": "quire.core.outputs",
    "SamplingParams": "quire.core.sampling_params",
    "StructuredOutputsParams": "quire.core.structured_outputs",
    "TextPrompt": "quire.core.prompts",
    "TokensPrompt": "quire.core.prompts",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # the next look-up finds it without this function
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
