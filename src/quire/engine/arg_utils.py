"""vLLM's import path for `EngineArgs`."""

from quire.core.config import EngineArgs

AsyncEngineArgs = EngineArgs

__all__ = ["AsyncEngineArgs", "EngineArgs"]
