"""vLLM's import path for `AsyncLLM`."""

from quire.frontend.async_llm import AsyncLLM

__all__ = ["AsyncLLM"]
