"""vLLM's import path for `LLMEngine`."""

from quire.frontend.llm_engine import LLMEngine

__all__ = ["LLMEngine"]
