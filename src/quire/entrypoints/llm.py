"""vLLM's import path for `quire.engine.llm`."""

from quire.engine.llm import LLM

__all__ = ["LLM"]
