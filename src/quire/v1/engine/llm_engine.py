"""vLLM's import path for `LLMEngine`."""

from quire.engine.llm_engine import LLMEngine

__all__ = ["LLMEngine"]
