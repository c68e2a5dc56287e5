"""vLLM's import path for log-probabilities."""

from quire.core.outputs import Logprob

__all__ = ["Logprob"]
