"""vLLM's import paths."""
