"""vLLM's import path for `AsyncLLM`."""

from quire.engine.async_engine import AsyncLLM

__all__ = ["AsyncLLM"]
