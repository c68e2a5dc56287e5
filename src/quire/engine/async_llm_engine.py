"""vLLM's import path for `AsyncLLM`."""

from quire.engine.async_engine import AsyncLLM

AsyncLLMEngine = AsyncLLM

__all__ = ["AsyncLLMEngine"]
