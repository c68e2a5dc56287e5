"""vLLM's import path for `quire.frontend.llm`."""

from quire.frontend.llm import LLM

__all__ = ["LLM"]
