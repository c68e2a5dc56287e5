"""vLLM's import path for `AsyncLLM`."""

from quire.frontend.async_llm import AsyncLLM

AsyncLLMEngine = AsyncLLM

__all__ = ["AsyncLLMEngine"]
